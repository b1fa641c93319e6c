// Causal linear attention with positive features,
//   out_i = Σ_{j≤i} K̂(q_i, k_j) v_j / Σ_{j≤i} K̂(q_i, k_j),   K̂(x, y) = Σ_m φ̃_m(x) φ̃_m(y),
// in one of three forms that give the same numbers, chosen by the chunk length: 1 is the recurrent
// form, T the parallel form, and anything between works through the sequence chunk by chunk.
// Where keys come `block` at a time, query i sees those with j / block ≤ i / block instead, and
// chunks are rounded up to whole blocks.
// Nothing overflows or vanishes for any finite input: sums over keys are kept relative to the
// largest φ̃_m seen so far, feature by feature, and there is no ε in the denominator. On a GPU q, k
// and v may be views.
#pragma once

#include "dofla/ops/attention_tape.h"
#include "dofla/ops/features.h"
#include "dofla/ops/gradient_buffers.h"

namespace dofla {

// What a layer remembers of the tokens seen so far: of every query head, or, if features are
// untied, of every key head. Plain tensors: save them as they are, and restore by filling the
// struct again.
struct LinearAttentionState {
  Tensor log_max;  // [B, ΣM] F32: max_j log φ̃_m(k_j); -inf before the first token
  Tensor a;        // [B, ΣM] F32: Σ_j exp(log φ̃_m(k_j) − log_max)
  Tensor b;        // [B, ΣM, D] F32: the same sum, weighted with v_j

  int64_t bytes() const { return log_max.bytes() + a.bytes() + b.bytes(); }
  // An independent copy to roll back to, or several: a batch of so many times B.
  LinearAttentionState fork(int64_t copies = 1) const;
};

// What a state of M features and head width D takes.
constexpr int64_t linear_state_bytes(int64_t features, int64_t width) {
  return features * (width + 2) * static_cast<int64_t>(sizeof(float));
}

LinearAttentionState new_linear_attention_state(int64_t batch, const Features& features);

// The fastest chunk length for a prefill.
constexpr int64_t kLinearAttentionChunk = 64;

// Attends T new tokens to themselves and to those in `state`, which then holds them too. Without a
// state the tokens are the whole sequence. What the backward of a whole sequence can use goes on
// the tape, where there is one; its log sums leave out −|q|²/(2√d). A block is a divisor of 64 and
// of T. Where `tokens` says how many every key head has, a multiple of the block, the others do not
// exist for it, and what is returned for them means nothing. Returns [B, T, H, D].
Tensor linear_attention(const Tensor& q,  // [B, H, T, D]
                        const Tensor& k,  // [B, Hkv, T, D]
                        const Tensor& v,  // [B, Hkv, T, D]
                        const Features& features, LinearAttentionState* state = nullptr,
                        int64_t chunk = kLinearAttentionChunk, AttentionTape* tape = nullptr,
                        int64_t block = 1, const std::vector<int64_t>& tokens = {});

// The same for one token of every sequence that `state` has seen. On a GPU the launch overlaps with
// the one ahead of it and reads the state before that has ended: between two steps of one state
// there must be a launch that does not overlap, as embed_sequences is. Returns [B, 1, H, D].
Tensor linear_attention_step(const Tensor& q,  // [B, H, 1, D]
                             const Tensor& k,  // [B, Hkv, 1, D]
                             const Tensor& v,  // [B, Hkv, 1, D]
                             const Features& features, LinearAttentionState& state);

struct LinearAttentionGradients {
  Tensor q;  // [B, H, T, D]
  Tensor k;  // [B, Hkv, T, D]
  Tensor v;  // [B, Hkv, T, D]
  FeatureGradients features;
};

// Gradients of a whole sequence, from the forward's tape and in the given buffers, as
// stable as the forward; memory O(T M) a head. The tape's out and log_sum may be those of attention
// to more, of which this is a part: the gradients are then this part's, without what a query's norm
// adds to that of q.
LinearAttentionGradients linear_attention_backward(const Tensor& q,  // [B, H, T, D]
                                                   const Tensor& k,  // [B, Hkv, T, D]
                                                   const Tensor& v,  // [B, Hkv, T, D]
                                                   const Features& features,
                                                   const Tensor& grad_out,  // [B, T, H, D]
                                                   int64_t chunk = kLinearAttentionChunk,
                                                   const AttentionTape& tape = {},
                                                   const GradientBuffers& buffers = {},
                                                   int64_t block = 1);

// What a device has to implement; ops/linear_attention.cc checks the arguments and picks the
// device.
struct LinearAttentionBackend {
  // `state` may be null. Fills in `log_sum` unless it is null. `chunk` is a multiple of `block`.
  Tensor (*forward)(const Tensor& q, const Tensor& k, const Tensor& v, const Features& features,
                    LinearAttentionState* state, int64_t chunk, Tensor* log_sum, int64_t block,
                    const std::vector<int64_t>& tokens);
  Tensor (*step)(const Tensor& q, const Tensor& k, const Tensor& v, const Features& features,
                 LinearAttentionState& state);
  LinearAttentionGradients (*backward)(const Tensor& q, const Tensor& k, const Tensor& v,
                                       const Features& features, const Tensor& grad_out,
                                       int64_t chunk, const AttentionTape& tape,
                                       const GradientBuffers& buffers, int64_t block);
};
namespace cpu {
extern const LinearAttentionBackend kLinearAttention;
LinearAttentionGradients linear_attention_backward(const Tensor& q, const Tensor& k,
                                                   const Tensor& v, const Features& features,
                                                   const Tensor& grad_out, int64_t chunk,
                                                   const AttentionTape& tape,
                                                   const GradientBuffers& buffers, int64_t block);
}  // namespace cpu
namespace cuda {
extern const LinearAttentionBackend kLinearAttention;
}  // namespace cuda

}  // namespace dofla
