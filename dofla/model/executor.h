// Who does what a decoder block consists of. The wiring of a block is written once, in block.cc,
// over these few operations; an executor does them at once, for whole sequences or for the next
// token of some (which can also be recorded), or writes them down for a token in a single launch.
#pragma once

#include "dofla/model/attention.h"
#include "dofla/model/decode_state.h"
#include "dofla/ops/dense.h"

namespace dofla {

class Executor {
 public:
  virtual ~Executor() = default;

  virtual int64_t batch() const = 0;  // B; there are R = B·T rows of activations

  virtual Tensor embed(const Tensor& tokens,          // [V, C]
                       const Tensor& positions) = 0;  // [context, C], or undefined -> [R, C]
  // As dofla::dense.
  virtual Tensor dense(const Tensor& x, const Dense& layer,
                       std::optional<DType> result = std::nullopt, Tensor* product = nullptr) = 0;
  // Norm and rotation of queries and keys, as dofla::place_heads.
  virtual void place_heads(const Placement& placement, Heads& heads) = 0;
  virtual Tensor attend(int64_t layer, const Attention& attention, const Heads& heads,
                        AttentionTape* tape) = 0;  // -> [R, H·D]
};

// Does them at once. With ids and positions on a GPU nothing comes from the CPU: it can be
// recorded.
class SequenceExecutor : public Executor {
 public:
  // `state` is null for whole sequences; else `past` says how much of it there is.
  SequenceExecutor(Tensor ids,  // [B, T], I64
                   DecodeState* state, Past past)
      : ids_(std::move(ids)), state_(state), past_(std::move(past)) {}

  int64_t batch() const override { return ids_.size(0); }
  Tensor embed(const Tensor& tokens, const Tensor& positions) override;
  Tensor dense(const Tensor& x, const Dense& layer, std::optional<DType> result,
               Tensor* product) override;
  void place_heads(const Placement& placement, Heads& heads) override;
  Tensor attend(int64_t layer, const Attention& attention, const Heads& heads,
                AttentionTape* tape) override;

 private:
  Tensor ids_;
  DecodeState* state_;
  Past past_;
  // Rows that several layers take through the same norm, which is computed once.
  Tensor rows_, norm_weight_, normal_;
};

// Writes them down for one sequence. After a kind of attention that has no such step there is no
// program: complete() is false, and what the operations return means nothing.
class ProgramExecutor : public Executor {
 public:
  ProgramExecutor(TokenProgram& program, DecodeState& state) : program_(program), state_(state) {}

  bool complete() const { return complete_; }

  int64_t batch() const override { return 1; }
  Tensor embed(const Tensor& tokens, const Tensor& positions) override;
  Tensor dense(const Tensor& x, const Dense& layer, std::optional<DType> result,
               Tensor* product) override;
  void place_heads(const Placement& placement, Heads& heads) override;
  Tensor attend(int64_t layer, const Attention& attention, const Heads& heads,
                AttentionTape* tape) override;

 private:
  TokenProgram& program_;
  DecodeState& state_;
  bool complete_ = true;
};

}  // namespace dofla
