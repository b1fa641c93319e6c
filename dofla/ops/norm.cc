#include "dofla/ops/norm.h"

#include "dofla/ops/cpu/norm.h"

namespace dofla {

Tensor layer_norm(const Tensor& x, const Tensor& weight, const Tensor& bias, double epsilon) {
  require_shape(weight, {x.size(-1)}, "layer_norm: weight");
  if (bias.defined()) require_shape(bias, {x.size(-1)}, "layer_norm: bias");
  Tensor y(x.shape());
  cpu::layer_norm(x, weight, bias, epsilon, y);
  return y;
}

Tensor rms_norm(const Tensor& x, const Tensor& weight, double epsilon) {
  require_shape(weight, {x.size(-1)}, "rms_norm: weight");
  Tensor y(x.shape());
  cpu::rms_norm(x, weight, epsilon, y);
  return y;
}

}  // namespace dofla
