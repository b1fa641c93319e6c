#include "dofla/ops/cross_entropy.h"

namespace dofla {
namespace {

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
  require_fits(x, head);
  require_shape(grad_loss, {x.size(0)}, "head gradients: grad_loss");
  if (head_gradient != nullptr) {
    require_gradient_fits(x, *head_gradient);
    require_shape(head_gradient->weight, head.weight.shape(), "head gradients: weight");
  }
  return {Tensor::zeros({x.size(0)}, DType::kF32, x.device()),
          Tensor::zeros(x.shape(), x.dtype(), x.device())};
}

const CrossEntropyBackend& cross_entropy_backend(const Device& device) {
  return device.is_cuda() ? cuda::kCrossEntropy : cpu::kCrossEntropy;
}

}  // namespace

Tensor cross_entropy(const Tensor& x, const Linear& head, const Tensor& targets) {
  require_fits(x, head);
  check_targets(x, head, targets);
  Tensor loss({x.size(0)}, DType::kF32, x.device());
  cross_entropy_backend(x.device()).cross_entropy(x, head, targets, loss);
  return loss;
}

CrossEntropyGradients cross_entropy_backward(const Tensor& x, const Linear& head,
                                             const Tensor& targets, const Tensor& grad_loss,
                                             Linear* head_gradient) {
  check_targets(x, head, targets);
  CrossEntropyGradients gradients = new_head_gradients(x, head, grad_loss, head_gradient);
  cross_entropy_backend(x.device())
      .cross_entropy_backward(x, head, targets, grad_loss, gradients, head_gradient);
  return gradients;
}

CrossEntropyGradients imitation_backward(const Tensor& x, const Linear& head,
                                         const Tensor& teacher_x, const Linear& teacher_head,
                                         const Tensor& grad_loss, Linear* head_gradient) {
  require_fits(teacher_x, teacher_head);
  require(teacher_x.size(0) == x.size(0) && teacher_head.outputs() == head.outputs(),
          "imitation: {} rows and a vocabulary of {}, of the teacher {} and {}", x.size(0),
          head.outputs(), teacher_x.size(0), teacher_head.outputs());
  CrossEntropyGradients gradients = new_head_gradients(x, head, grad_loss, head_gradient);
  cross_entropy_backend(x.device())
      .imitation_backward(x, head, teacher_x, teacher_head, grad_loss, gradients, head_gradient);
  return gradients;
}

}  // namespace dofla
