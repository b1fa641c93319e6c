#include "dofla/ops/matmul.h"

#include "dofla/ops/activation.h"
#include "dofla/ops/cpu/matmul.h"
#include "dofla/ops/cuda/matmul.h"

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
  const int64_t* id = targets.data<int64_t>();
  const int64_t vocabulary = head.outputs();
  for (int64_t i = 0; i < targets.count(); ++i)
    require(id[i] >= 0 && id[i] < vocabulary,
            "cross_entropy: target {} outside the vocabulary of {}", id[i], vocabulary);
}

CrossEntropyGradients new_head_gradients(const Tensor& x, const Linear& head,
                                         const Tensor& grad_loss, const Linear* head_gradient) {
  check(x, head);
  require_shape(grad_loss, {x.size(0)}, "head gradients: grad_loss");
  if (head_gradient != nullptr) {
    check_gradient(x, *head_gradient);
    require_shape(head_gradient->weight, head.weight.shape(), "head gradients: weight");
  }
  return {Tensor::zeros({x.size(0)}, DType::kF32, x.device()),
          Tensor::zeros(x.shape(), x.dtype(), x.device())};
}

}  // namespace

Linear transposed(const Linear& linear) {
  return {.weight = linear.weight, .input_major = !linear.input_major, .bias = {}};
}

Tensor matmul(const Tensor& x, const Linear& linear, std::optional<DType> result) {
  check(x, linear);
  Tensor y({x.size(0), linear.outputs()}, result.value_or(x.dtype()), x.device());
  const auto run = x.device().is_cuda() ? cuda::matmul : cpu::matmul;
  run(x, linear, y);
  return y;
}

Tensor matmul_add(const Tensor& x, const Linear& linear, const Tensor& addend) {
  check(x, linear);
  require_shape(addend, {x.size(0), linear.outputs()}, "matmul: addend");
  if (x.device().is_cuda()) {
    Tensor y(addend.shape(), x.dtype(), x.device());
    cuda::matmul_add(x, linear, addend, y);
    return y;
  }
  Tensor y = matmul(x, linear);
  add(y, addend);
  return y;
}

Tensor matmul_gelu_tanh(const Tensor& x, const Linear& linear, Tensor* inner) {
  check(x, linear);
  if (x.device().is_cuda() && cuda::can_fuse_gelu(linear.outputs())) {
    Tensor y({x.size(0), linear.outputs()}, x.dtype(), x.device());
    if (inner != nullptr) *inner = Tensor(y.shape(), y.dtype(), y.device());
    cuda::matmul_gelu_tanh(x, linear, y, inner);
    return y;
  }
  Tensor y = matmul(x, linear);
  if (inner != nullptr) *inner = y.clone();
  activate(Activation::kGeluTanh, y);
  return y;
}

Tensor matmul_backward(const Tensor& grad_y, const Linear& linear) {
  return matmul(grad_y, transposed(linear));
}

Tensor matmul_gelu_tanh_backward(const Tensor& grad_y, const Linear& linear, const Tensor& inner) {
  const Linear back = transposed(linear);
  check(grad_y, back);
  require_shape(inner, {grad_y.size(0), back.outputs()}, "matmul: inner");
  if (grad_y.device().is_cuda() && cuda::can_fuse_gelu(back.outputs())) {
    Tensor grad(inner.shape(), inner.dtype(), inner.device());
    cuda::matmul_gelu_tanh_backward(grad_y, back, inner, grad);
    return grad;
  }
  Tensor grad = matmul(grad_y, back);
  activate_backward(Activation::kGeluTanh, inner, grad);
  return grad;
}

void add_weight_gradient(const Tensor& x, const Tensor& grad_y, Linear& gradient) {
  check_gradient(x, gradient);
  require_shape(grad_y, {x.size(0), gradient.outputs()}, "weight gradient: grad_y");
  const auto run = x.device().is_cuda() ? cuda::add_weight_gradient : cpu::add_weight_gradient;
  run(x, grad_y, gradient);
}

Tensor cross_entropy(const Tensor& x, const Linear& head, const Tensor& targets) {
  check(x, head);
  check_targets(x, head, targets);
  Tensor loss({x.size(0)}, DType::kF32, x.device());
  const auto run = x.device().is_cuda() ? cuda::cross_entropy : cpu::cross_entropy;
  run(x, head, targets, loss);
  return loss;
}

CrossEntropyGradients cross_entropy_backward(const Tensor& x, const Linear& head,
                                             const Tensor& targets, const Tensor& grad_loss,
                                             Linear* head_gradient) {
  check_targets(x, head, targets);
  CrossEntropyGradients gradients = new_head_gradients(x, head, grad_loss, head_gradient);
  const auto run =
      x.device().is_cuda() ? cuda::cross_entropy_backward : cpu::cross_entropy_backward;
  run(x, head, targets, grad_loss, gradients, head_gradient);
  return gradients;
}

CrossEntropyGradients imitation_backward(const Tensor& x, const Linear& head,
                                         const Tensor& teacher_x, const Linear& teacher_head,
                                         const Tensor& grad_loss, Linear* head_gradient) {
  check(teacher_x, teacher_head);
  require(teacher_x.size(0) == x.size(0) && teacher_head.outputs() == head.outputs(),
          "imitation: {} rows and a vocabulary of {}, of the teacher {} and {}", x.size(0),
          head.outputs(), teacher_x.size(0), teacher_head.outputs());
  CrossEntropyGradients gradients = new_head_gradients(x, head, grad_loss, head_gradient);
  const auto run = x.device().is_cuda() ? cuda::imitation_backward : cpu::imitation_backward;
  run(x, head, teacher_x, teacher_head, grad_loss, gradients, head_gradient);
  return gradients;
}

}  // namespace dofla
