// One token of every sequence through a decoder. On a GPU each of these is a launch or two, and can
// be recorded (core/device_recording.h): token ids and positions are read from its memory. They
// overlap with each other there, so that a chain of them begins with embed_tokens and has no two
// steps of one state. Elsewhere they are put together from the operations that whole sequences use.
#pragma once

#include <memory>
#include <optional>

#include "dofla/core/activation.h"
#include "dofla/ops/heads.h"
#include "dofla/ops/linear_attention.h"
#include "dofla/ops/matmul.h"

namespace dofla {

// tokens[ids[b]] + positions[where[b]]. Ids and positions lie in their tables: on a GPU nobody
// looks.
Tensor embed_tokens(const Tensor& tokens,     // [V, C]
                    const Tensor& positions,  // [context, C], or undefined
                    const Tensor& ids,        // [B], I64, on the tables' device
                    const Tensor& where);     // [B], I64 -> [B, C]

// A dense layer with what stands around it:
//   activation(W norm(x) + bias) · factor + residual.
struct Dense {
  struct Norm {
    Tensor weight;  // [K], F32; undefined: no norm
    Tensor bias;    // [K], F32, or undefined
    double epsilon = 0;
    bool centre = true;  // a layer norm; else an RMS norm
  };

  Linear linear;
  Norm norm = {};
  std::optional<Activation> activation = {};
  Tensor factor = {};    // [B, N], or undefined
  Tensor residual = {};  // [B, N], or undefined
};

// On a GPU up to eight rows read a weight [N, K] once, at the speed of memory, and are rounded to
// bf16 only at the end. The result has the type of x unless another one is asked for.
Tensor dense(const Tensor& x,  // [B, K] -> [B, N]
             const Dense& layer, std::optional<DType> result = std::nullopt);

// The heads of one token of every sequence, where a projection left them.
struct RowHeads {
  Tensor rows;  // [B, columns]
  HeadColumns columns;
  int64_t heads = 0;
};

// Queries and keys get their RMS norm and their rotation by position · frequencies, in place.
struct Placement {
  int64_t head_size = 0;
  Tensor q_norm = {}, k_norm = {};  // [D], F32, or undefined
  double epsilon = 0;
  Tensor frequencies = {};  // [F], F32, on the rows' device, or undefined
};
void place_heads(const Placement& placement,
                 const Tensor& where,  // [B], I64, on the rows' device
                 RowHeads& q, RowHeads& k);

// linear_attention of one token, with its heads where a projection left them.
Tensor linear_attention_step(const RowHeads& q, const RowHeads& k, const RowHeads& v,
                             const Features& features,
                             LinearAttentionState& state);  // -> [B, H·D]

// The same steps for who does not care whether they are done at once or written down.
class TokenSteps {
 public:
  virtual ~TokenSteps() = default;
  virtual Tensor embed_tokens(const Tensor& tokens, const Tensor& positions) = 0;
  virtual Tensor dense(const Tensor& x, const Dense& layer,
                       std::optional<DType> result = std::nullopt) = 0;
  virtual void place_heads(const Placement& placement, RowHeads& q, RowHeads& k) = 0;
  virtual Tensor linear_attention_step(const RowHeads& q, const RowHeads& k, const RowHeads& v,
                                       const Features& features, LinearAttentionState& state) = 0;
};

// The steps of one sequence, written down once and then run as a whole for every token, on a GPU in
// a single launch. Nothing is computed before run(); what a step returns stands for its numbers in
// the steps that follow, and only the result of a `dense` of a given type can be read. All tensors
// and states that the steps are given must live as long as the program.
class TokenProgram : public TokenSteps {
 public:
  // After the last step: whether the device can run them so. It takes a Hopper; BF16 weights [N, K]
  // with whole packs of eight inputs, no more than 8192, or 2048 behind a norm; heads that consist
  // of fours of coordinates and turn in fours.
  virtual bool finish() = 0;
  // Ids and positions lie in their tables: on a GPU nobody looks.
  virtual void run(int64_t id, int64_t position) = 0;
};

// Null where there are none: not on a GPU.
std::unique_ptr<TokenProgram> token_program(const Device& device);

}  // namespace dofla
