#include "dofla/ops/rounding.h"

namespace dofla {

void round_into(const Tensor& from, Tensor& to) {
  require(from.dtype() == DType::kF32, "rounding: expected F32, found {}", name(from.dtype()));
  require_shape(to, from.shape(), "rounding");
  if (to.device().is_cuda()) return cuda::kRounding.round_into(from, to);
  to.assign(from.to(to.dtype()));
}

}  // namespace dofla
