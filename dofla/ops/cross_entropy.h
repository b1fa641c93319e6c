// Losses of the next token and their gradients, through the head that turns hidden states into
// logits. The logits of a whole batch never exist at once.
#pragma once

#include "dofla/ops/matmul.h"

namespace dofla {

// Next-token cross-entropy −log softmax(W x)[target] of every row, in nats. Logits exist only a
// panel of the vocabulary at a time.
Tensor cross_entropy(const Tensor& x,         // [R, K], F32
                     const Linear& head,      // N is the vocabulary
                     const Tensor& targets);  // [R], I64 -> [R], F32

struct CrossEntropyGradients {
  Tensor loss;  // [R], as cross_entropy has it; 0 for the rows left out
  Tensor x;     // [R, K]
};

// Losses and gradients of Σ grad_loss · loss in one pass. Rows with a grad_loss of 0 (padding,
// prompts) are left out and cost nothing. The head's gradients are added where they are wanted.
// Logits exist only for some rows at a time, and are then computed once; a panel of the
// vocabulary at a time would compute them twice, for the losses and for the gradients.
CrossEntropyGradients cross_entropy_backward(const Tensor& x,          // [R, K], F32
                                             const Linear& head,       // N is the vocabulary
                                             const Tensor& targets,    // [R], I64
                                             const Tensor& grad_loss,  // [R], F32
                                             Linear* head_gradient = nullptr);

// The same for a student that imitates a teacher: the loss of a row is
// KL(teacher ‖ student) between their distributions of the next token.
CrossEntropyGradients imitation_backward(const Tensor& x,             // [R, K]
                                         const Linear& head,          // N is the vocabulary
                                         const Tensor& teacher_x,     // [R, K']
                                         const Linear& teacher_head,  // of the same vocabulary
                                         const Tensor& grad_loss,     // [R], F32
                                         Linear* head_gradient = nullptr);

// What a device has to implement; ops/cross_entropy.cc checks the arguments, picks the device and
// hands over gradients that are zero. A null `head_gradient` is not wanted.
struct CrossEntropyBackend {
  void (*cross_entropy)(const Tensor& x, const Linear& head, const Tensor& targets, Tensor& loss);
  void (*cross_entropy_backward)(const Tensor& x, const Linear& head, const Tensor& targets,
                                 const Tensor& grad_loss, CrossEntropyGradients& gradients,
                                 Linear* head_gradient);
  void (*imitation_backward)(const Tensor& x, const Linear& head, const Tensor& teacher_x,
                             const Linear& teacher_head, const Tensor& grad_loss,
                             CrossEntropyGradients& gradients, Linear* head_gradient);
};
namespace cpu {
extern const CrossEntropyBackend kCrossEntropy;
}
namespace cuda {
extern const CrossEntropyBackend kCrossEntropy;
}

}  // namespace dofla
