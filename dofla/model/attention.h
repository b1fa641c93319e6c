// What stands between q, k, v and the attention's output: softmax attention with a key/value
// cache, or linear attention with a state that does not grow. Every layer of a model has a kind of
// its own. On a GPU q, k and v may be views.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>

#include "dofla/core/tensor.h"
#include "dofla/ops/attention_tape.h"
#include "dofla/ops/features.h"
#include "dofla/ops/gradient_buffers.h"
#include "dofla/ops/token_program.h"

namespace dofla {

// On a GPU these may be views of a projection's rows.
struct Heads {
  Tensor q;  // [B, H, T, D]
  Tensor k;  // [B, Hkv, T, D]
  Tensor v;  // [B, Hkv, T, D]
};

// What one layer remembers of the tokens that B sequences have seen so far.
class AttentionState {
 public:
  // Sequence `index` of a state.
  struct Sequence {
    const AttentionState* state;
    int64_t index;
  };

  virtual ~AttentionState() = default;
  virtual int64_t bytes() const = 0;
  // An independent state of these sequences of states of this kind; an empty one of none.
  virtual std::unique_ptr<AttentionState> gather(std::span<const Sequence> sequences) const = 0;
  // The same with change(tensor) in place of every tensor that it holds, each [B, …], in an order
  // of its kind; an empty one holds none.
  using Change = std::function<Tensor(const Tensor&)>;
  virtual std::unique_ptr<AttentionState> transform(const Change& change) const = 0;
};

// What came before the tokens of a call.
struct Past {
  AttentionState* state = nullptr;  // of the layer; null: nothing came before or is remembered
  Tensor tokens = {};  // [B], I64, on the model's device: how many of every sequence; undefined: 0
  int64_t most = 0;    // no sequence has more
  bool equal = true;   // all have `most`
};

struct AttentionGradients {
  Tensor q;                   // [B, H, T, D]
  Tensor k;                   // [B, Hkv, T, D]
  Tensor v;                   // [B, Hkv, T, D]
  FeatureGradients features;  // all undefined for softmax attention, which has none
};

class Attention {
 public:
  virtual ~Attention() = default;

  virtual const Features* features() const { return nullptr; }  // null for softmax attention

  // Whether its state grows with every token.
  virtual bool grows() const = 0;

  // An empty state, which can be of any number of sequences.
  virtual std::unique_ptr<AttentionState> new_state() const = 0;

  // Makes space in a state for sequences of so many tokens, and in an empty one for so many
  // sequences; `type` is that of the keys. True where the state's memory is another one then.
  virtual bool reserve(AttentionState& state, int64_t batch, int64_t tokens, DType type,
                       const Device& device) const = 0;

  // Causal attention of T new tokens to themselves and to those before them, which the state then
  // holds too. Without a state the tokens are whole sequences, and the tape, where there is one,
  // receives what the backward wants. On a GPU a single token may be attended to while the launch
  // ahead still runs: before the next one something else has to be launched, as in a whole model.
  // Returns [B, T, H, D].
  virtual Tensor forward(const Heads& heads, const Past& past,
                         AttentionTape* tape = nullptr) const = 0;

  // Writes one token down for later; undefined where the kind has no such step.
  virtual Tensor write_step(TokenProgram& program, const Heads& heads,
                            AttentionState& state) const {
    (void)program, (void)heads, (void)state;
    return {};
  }

  // Gradients of a forward without state, from its tape and the gradient of its output, in the
  // given buffers.
  virtual AttentionGradients backward(const Heads& heads, const AttentionTape& tape,
                                      const Tensor& grad_out,  // [B, T, H, D]
                                      const GradientBuffers& buffers) const = 0;
};

}  // namespace dofla
