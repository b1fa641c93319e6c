// The teacher's attention: softmax over a key/value cache that grows with the sequence.
#pragma once

#include "dofla/model/attention.h"

namespace dofla {

class SoftmaxAttention : public Attention {
 public:
  // The cache never takes more room than `context` tokens.
  explicit SoftmaxAttention(int64_t context) : context_(context) {}

  std::unique_ptr<AttentionState> new_state() const override;
  Tensor forward(const Tensor& q, const Tensor& k, const Tensor& v, AttentionState* state,
                 AttentionTape* tape) const override;
  AttentionGradients backward(const Tensor& q, const Tensor& k, const Tensor& v,
                              const AttentionTape& tape, const Tensor& grad_out,
                              const GradientRoom& room) const override;

 private:
  int64_t context_;
};

}  // namespace dofla
