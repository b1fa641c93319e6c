// One token of every sequence through a decoder. On a GPU each of these is a launch or two, and can
// be recorded (core/device_recording.h): token ids and positions are read from its memory. They
// overlap with each other there, so that a chain of them begins with embed_tokens and has no two
// steps of one state. Elsewhere they are put together from the operations that whole sequences use.
#pragma once

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

}  // namespace dofla
