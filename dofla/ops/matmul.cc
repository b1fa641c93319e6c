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

void check_gradient(const Tensor& x, const Linear& gradient) {
  check(x, gradient);
  require(gradient.weight.dtype() == DType::kF32, "weight gradient: expected F32, found {}",
          name(gradient.weight.dtype()));
}

void check_targets(const Tensor& x, const Linear& head, const Tensor& targets) {
  require_shape(targets, {x.size(0)}, "cross_entropy: targets");
  for (int64_t i = 0; i < targets.count(); ++i) {
    const int64_t id = targets.data<int64_t>()[i];
    require(id >= 0 && id < head.outputs(), "cross_entropy: target {} outside the vocabulary of {}",
            id, head.outputs());
  }
}

}  // namespace

Linear transposed(const Linear& linear) {
  return {.weight = linear.weight, .input_major = !linear.input_major, .bias = {}};
}

Tensor matmul(const Tensor& x, const Linear& linear) {
  check(x, linear);
  Tensor y({x.size(0), linear.outputs()});
  cpu::matmul(x, linear, y);
  return y;
}

Tensor matmul_backward(const Tensor& grad_y, const Linear& linear) {
  return matmul(grad_y, transposed(linear));
}

void add_weight_gradient(const Tensor& x, const Tensor& grad_y, Linear& gradient) {
  check_gradient(x, gradient);
  require_shape(grad_y, {x.size(0), gradient.outputs()}, "weight gradient: grad_y");
  cpu::add_weight_gradient(x, grad_y, gradient);
}

Tensor cross_entropy(const Tensor& x, const Linear& head, const Tensor& targets) {
  check(x, head);
  check_targets(x, head, targets);
  Tensor loss({x.size(0)});
  cpu::cross_entropy(x, head, targets, loss);
  return loss;
}

CrossEntropyGradients cross_entropy_backward(const Tensor& x, const Linear& head,
                                             const Tensor& targets, const Tensor& grad_loss,
                                             Linear* head_gradient) {
  check(x, head);
  check_targets(x, head, targets);
  require_shape(grad_loss, {x.size(0)}, "cross_entropy_backward: grad_loss");
  if (head_gradient != nullptr) {
    check_gradient(x, *head_gradient);
    require_shape(head_gradient->weight, head.weight.shape(), "cross_entropy_backward: gradient");
  }
  CrossEntropyGradients gradients = {Tensor::zeros({x.size(0)}), Tensor::zeros(x.shape())};
  cpu::cross_entropy_backward(x, head, targets, grad_loss, gradients, head_gradient);
  return gradients;
}

}  // namespace dofla
