// The attention of a hybrid student: exact keys and features in one softmax, and a state of fixed
// size. Without features a cache alone, which forgets what leaves it. Key heads may hold different
// numbers of exact keys.
#pragma once

#include "dofla/checkpoint/hf_config.h"
#include "dofla/model/attention.h"
#include "dofla/ops/hybrid_attention.h"

namespace dofla {

class HybridAttention : public Attention {
 public:
  HybridAttention(const ModelConfig& config, Features features, ExactKeys exact);

  const Features* features() const override { return features_.empty() ? nullptr : &features_; }
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
  int64_t key_heads_, head_size_;
  Features features_;
  ExactKeys exact_;
};

// The kind of attention that a layer of a student has: hybrid, linear, or the teacher's softmax
// where it has neither features nor exact keys. `features` must be on the model's device.
std::unique_ptr<Attention> make_attention(const ModelConfig& config, const Features& features,
                                          const ExactKeys& exact);

}  // namespace dofla
