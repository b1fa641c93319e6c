#include "dofla/ops/cuda/norm.h"

#include "dofla/ops/cuda/norm_kernels.h"
#include "dofla/ops/cuda/tensors.h"

namespace dofla::cuda {
namespace {

NormArguments arguments(const Tensor& x, const Tensor& weight, double epsilon, bool centre) {
  const int64_t width = x.size(-1);
  return {element_of(x), x.count() / width, width,         static_cast<float>(epsilon),
          centre,        x.raw(),           floats(weight)};
}

}  // namespace

void layer_norm(const Tensor& x, const Tensor& weight, const Tensor& bias, double epsilon,
                Tensor& y) {
  cuda_check(
      launch_norm(arguments(x, weight, epsilon, true), floats(bias), y.mutable_raw(), stream_of(x)),
      "layer norm");
}

void rms_norm(const Tensor& x, const Tensor& weight, double epsilon, Tensor& y) {
  cuda_check(
      launch_norm(arguments(x, weight, epsilon, false), nullptr, y.mutable_raw(), stream_of(x)),
      "RMS norm");
}

}  // namespace dofla::cuda
