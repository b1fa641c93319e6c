#include "dofla/ops/matmul.h"

#include "dofla/ops/cpu/matmul.h"

namespace dofla {
namespace {

void check(const Tensor& x, const Linear& linear) {
  require(x.rank() == 2, "matmul: x is not a matrix but {}", to_string(x.shape()));
  require(linear.weight.rank() == 2, "matmul: weight is not a matrix but {}",
          to_string(linear.weight.shape()));
  require(x.size(1) == linear.inputs(), "matmul: {} columns meet {} inputs", x.size(1),
          linear.inputs());
  if (linear.bias.defined()) require_shape(linear.bias, {linear.outputs()}, "matmul: bias");
}

}  // namespace

Tensor matmul(const Tensor& x, const Linear& linear) {
  check(x, linear);
  Tensor y({x.size(0), linear.outputs()});
  cpu::matmul(x, linear, y);
  return y;
}

Tensor cross_entropy(const Tensor& x, const Linear& head, const Tensor& targets) {
  check(x, head);
  require_shape(targets, {x.size(0)}, "cross_entropy: targets");
  for (int64_t i = 0; i < targets.count(); ++i) {
    const int64_t id = targets.data<int64_t>()[i];
    require(id >= 0 && id < head.outputs(), "cross_entropy: target {} outside the vocabulary of {}",
            id, head.outputs());
  }
  Tensor loss({x.size(0)});
  cpu::cross_entropy(x, head, targets, loss);
  return loss;
}

}  // namespace dofla
