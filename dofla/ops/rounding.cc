#include "dofla/ops/rounding.h"

#include "dofla/ops/cuda/rounding.h"

namespace dofla {

void round_into(const Tensor& from, Tensor& to) {
  require(from.dtype() == DType::kF32, "rounding: expected F32, found {}", name(from.dtype()));
  require_shape(to, from.shape(), "rounding");
  if (to.device().is_cuda()) return cuda::round_into(from, to);
  to.assign(from.to(to.dtype()));
}

}  // namespace dofla
