// The student's attention: positive features and a state whose size does not depend on how many
// tokens it has seen.
#pragma once

#include "dofla/model/attention.h"
#include "dofla/ops/linear_attention.h"

namespace dofla {

class LinearAttention : public Attention {
 public:
  explicit LinearAttention(Features features) : features_(std::move(features)) {}

  const Features* features() const override { return &features_; }

  std::unique_ptr<AttentionState> new_state() const override;
  // The tensors of a state that new_state made; those of an empty one are made for this batch.
  LinearAttentionState& tensors_of(AttentionState& state, int64_t batch) const;
  Tensor forward(const Tensor& q, const Tensor& k, const Tensor& v, AttentionState* state,
                 AttentionTape* tape) const override;
  AttentionGradients backward(const Tensor& q, const Tensor& k, const Tensor& v,
                              const AttentionTape& tape, const Tensor& grad_out,
                              const GradientRoom& room) const override;

 private:
  Features features_;
};

}  // namespace dofla
