#include "dofla/ops/cuda/heads.h"

#include "dofla/ops/cuda/head_kernels.h"
#include "dofla/ops/cuda/head_tensors.h"

namespace dofla::cuda {
namespace {

HeadShape shape_of(const Tensor& heads) {
  return {element_of(heads), heads.size(0), heads.size(1), heads.size(2), heads.size(3)};
}

}  // namespace

void copy_heads(const Tensor& from, Tensor& to) {
  cuda_check(launch_copy_heads(shape_of(from), heads_of(from), heads_of(to), stream_of(to)),
             "copying heads");
}

void rotate(Tensor& x, const std::vector<float>& frequencies, int64_t first_position) {
  const int64_t pairs = static_cast<int64_t>(frequencies.size());
  Tensor table({pairs});
  std::copy(frequencies.begin(), frequencies.end(), table.data<float>());
  const Tensor there = table.to(x.device());
  cuda_check(
      launch_rotate(shape_of(x), {first_position, pairs, floats(there)}, heads_of(x), stream_of(x)),
      "rotate");
}

}  // namespace dofla::cuda
