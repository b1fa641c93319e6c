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
  bool grows() const override { return false; }

  std::unique_ptr<AttentionState> new_state() const override;
  bool reserve(AttentionState& state, int64_t batch, int64_t tokens, DType type,
               const Device& device) const override;
  Tensor forward(const Heads& heads, const Past& past, AttentionTape* tape) const override;
  Tensor write_step(TokenProgram& program, const Heads& heads,
                    AttentionState& state) const override;
  AttentionGradients backward(const Heads& heads, const AttentionTape& tape, const Tensor& grad_out,
                              const GradientBuffers& buffers) const override;

 private:
  Features features_;
};

}  // namespace dofla
