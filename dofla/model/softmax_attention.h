// The teacher's attention: softmax over a key/value cache that grows with the sequence.
#pragma once

#include "dofla/checkpoint/hf_config.h"
#include "dofla/model/attention.h"

namespace dofla {

class SoftmaxAttention : public Attention {
 public:
  explicit SoftmaxAttention(const ModelConfig& config)
      : context_(config.context), heads_(config.kv_heads), head_size_(config.head_size) {}

  bool grows() const override { return true; }
  std::unique_ptr<AttentionState> new_state() const override;
  bool reserve(AttentionState& state, int64_t batch, int64_t tokens, DType type,
               const Device& device) const override;
  Tensor forward(const Heads& heads, const Past& past, AttentionTape* tape) const override;
  Tensor write_step(TokenProgram& program, const Heads& heads,
                    AttentionState& state) const override;
  AttentionGradients backward(const Heads& heads, const AttentionTape& tape, const Tensor& grad_out,
                              const GradientBuffers& buffers) const override;

 private:
  int64_t context_, heads_, head_size_;
};

}  // namespace dofla
