#include "dofla/ops/activation.h"

#include "dofla/ops/cpu/activation.h"

namespace dofla {

void gelu(Tensor& x) {
  cpu::gelu(x);
}
void gelu_tanh(Tensor& x) {
  cpu::gelu_tanh(x);
}
void silu(Tensor& x) {
  cpu::silu(x);
}
void relu(Tensor& x) {
  cpu::relu(x);
}

void multiply(Tensor& x, const Tensor& y) {
  require_shape(y, x.shape(), "multiply");
  cpu::multiply(x, y);
}

void add(Tensor& x, const Tensor& y) {
  require_shape(y, x.shape(), "add");
  cpu::add(x, y);
}

}  // namespace dofla
