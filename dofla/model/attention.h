// What stands between q, k, v and the attention's output: softmax attention with a key/value
// cache, or linear attention with a state that does not grow. On a GPU q, k and v may be views.
#pragma once

#include <cstdint>
#include <memory>

#include "dofla/core/tensor.h"
#include "dofla/ops/attention_tape.h"
#include "dofla/ops/features.h"
#include "dofla/ops/gradient_room.h"

namespace dofla {

// What one layer remembers of the tokens seen so far.
class AttentionState {
 public:
  virtual ~AttentionState() = default;
  virtual int64_t bytes() const = 0;
  // Independent copies as one state, whose batch is so many times as large.
  virtual std::unique_ptr<AttentionState> clone(int64_t copies) const = 0;
};

struct FeatureGradients {
  Tensor z;          // [ΣM, D]; both undefined for softmax attention, which has no features
  Tensor log_alpha;  // [ΣM]
};

struct AttentionGradients {
  Tensor q;  // [B, H, T, D]
  Tensor k;  // [B, Hkv, T, D]
  Tensor v;  // [B, Hkv, T, D]
  FeatureGradients features;
};

class Attention {
 public:
  virtual ~Attention() = default;

  virtual const Features* features() const { return nullptr; }  // null for softmax attention

  virtual std::unique_ptr<AttentionState> new_state() const = 0;

  // Causal attention of T new tokens to themselves and to those in `state`, which then holds them
  // too. Without a state the tokens are the whole sequence, and the tape, where there is one,
  // receives what the backward wants. Returns [B, T, H, D].
  virtual Tensor forward(const Tensor& q,  // [B, H, T, D]
                         const Tensor& k,  // [B, Hkv, T, D]
                         const Tensor& v,  // [B, Hkv, T, D]
                         AttentionState* state, AttentionTape* tape = nullptr) const = 0;

  // Gradients of a forward without state, from its tape and the gradient of its output, in the room
  // there is for them.
  virtual AttentionGradients backward(const Tensor& q,  // [B, H, T, D]
                                      const Tensor& k,  // [B, Hkv, T, D]
                                      const Tensor& v,  // [B, Hkv, T, D]
                                      const AttentionTape& tape,
                                      const Tensor& grad_out,  // [B, T, H, D]
                                      const GradientRoom& room) const = 0;
};

}  // namespace dofla
