// Dense layers on the CPU; arguments are checked by ops/matmul.cc.
#pragma once

#include "dofla/ops/matmul.h"

namespace dofla::cpu {

void matmul(const Tensor& x, const Linear& linear, Tensor& y);
void cross_entropy(const Tensor& x, const Linear& head, const Tensor& targets, Tensor& loss);

void add_weight_gradient(const Tensor& x, const Tensor& grad_y, Linear& gradient);
void cross_entropy_backward(const Tensor& x, const Linear& head, const Tensor& targets,
                            const Tensor& grad_loss, CrossEntropyGradients& gradients,
                            Linear* head_gradient);
void imitation_backward(const Tensor& x, const Linear& head, const Tensor& teacher_x,
                        const Linear& teacher_head, const Tensor& grad_loss,
                        CrossEntropyGradients& gradients, Linear* head_gradient);

}  // namespace dofla::cpu
