#include "dofla/ops/rounding.h"

#include "dofla/ops/cuda/element_kernels.h"
#include "dofla/ops/cuda/tensors.h"

namespace dofla::cuda {
namespace {

void round_into(const Tensor& from, Tensor& to) {
  cuda_check(
      launch_round(from.count(), floats(from), to.mutable_raw(), element_of(to), stream_of(to)),
      "rounding");
}

}  // namespace

const RoundingBackend kRounding = {.round_into = round_into};

}  // namespace dofla::cuda
