// Dense layers on a GPU; arguments are checked by ops/matmul.cc.
#pragma once

#include "dofla/ops/matmul.h"

namespace dofla::cuda {

void matmul(const Tensor& x, const Linear& linear, Tensor& y);
void matmul_add(const Tensor& x, const Linear& linear, const Tensor& addend, Tensor& y);

// What cuBLASLt asks of the number of columns.
inline bool can_fuse_gelu(int64_t columns) {
  return columns % 8 == 0;
}
void matmul_gelu_tanh(const Tensor& x, const Linear& linear, Tensor& y, Tensor* inner);
// grad = gelu_tanh'(inner) · matmul(grad_y, back)
void matmul_gelu_tanh_backward(const Tensor& grad_y, const Linear& back, const Tensor& inner,
                               Tensor& grad);

void cross_entropy(const Tensor& x, const Linear& head, const Tensor& targets, Tensor& loss);

void add_weight_gradient(const Tensor& x, const Tensor& grad_y, Linear& gradient);
void cross_entropy_backward(const Tensor& x, const Linear& head, const Tensor& targets,
                            const Tensor& grad_loss, CrossEntropyGradients& gradients,
                            Linear* head_gradient);
void imitation_backward(const Tensor& x, const Linear& head, const Tensor& teacher_x,
                        const Linear& teacher_head, const Tensor& grad_loss,
                        CrossEntropyGradients& gradients, Linear* head_gradient);

}  // namespace dofla::cuda
