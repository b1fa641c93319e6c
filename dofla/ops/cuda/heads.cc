#include "dofla/ops/heads.h"

#include "dofla/ops/cuda/head_kernels.h"
#include "dofla/ops/cuda/head_tensors.h"

namespace dofla::cuda {
namespace {

HeadShape shape_of(const Tensor& heads) {
  return {element_of(heads), heads.size(0), heads.size(1), heads.size(2), heads.size(3)};
}

Rotation rotation_of(const Tensor& frequencies, const Tensor& first, bool back) {
  return {integers(first), frequencies.count(), floats(frequencies), back ? -1.0f : 1.0f};
}

void copy_heads(const Tensor& from, const Tensor& past, Tensor& to) {
  cuda_check(launch_copy_heads(shape_of(from), heads_of(from), integers(past), heads_of(to),
                               stream_of(to)),
             "copying heads");
}

void rotate(Tensor& x, const Tensor& frequencies, const Tensor& first, bool back) {
  cuda_check(
      launch_rotate(shape_of(x), rotation_of(frequencies, first, back), heads_of(x), stream_of(x)),
      "rotate");
}

void place_token_heads(const Placement& placement, const Tensor& first, Tensor& q, Tensor& k) {
  const auto place_of = [&](const Tensor& from, const Tensor& norm) {
    return norm.defined() ? Tensor(from.shape(), from.dtype(), from.device()) : from;
  };
  Tensor q_out = place_of(q, placement.q_norm), k_out = place_of(k, placement.k_norm);
  const PlacedHeads heads = {
      {heads_of(std::as_const(q)), heads_of(q_out), q.size(1), floats(placement.q_norm)},
      {heads_of(std::as_const(k)), heads_of(k_out), k.size(1), floats(placement.k_norm)},
      static_cast<float>(placement.epsilon),
      rotation_of(placement.frequencies, first, false)};
  cuda_check(launch_place_heads(shape_of(q), heads, stream_of(q)), "rotate");
  q = q_out, k = k_out;
}

}  // namespace

const HeadsBackend kHeads = {copy_heads, rotate, place_token_heads};

}  // namespace dofla::cuda
