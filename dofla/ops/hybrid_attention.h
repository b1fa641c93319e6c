// Attention to exact keys and to features in one softmax: K itself for the keys that a cache holds
// (ops/exact_keys.h), its estimate K̂ for those that have left it, one denominator for both,
//   out_i = (Σ_{j held} K(q_i, k_j) v_j + Σ_{j left} K̂(q_i, k_j) v_j) / (the same without v).
// A key that leaves joins the state of linear attention. Without features it is forgotten.
// docs/hybrid.md.
#pragma once

#include "dofla/ops/exact_keys.h"
#include "dofla/ops/linear_attention.h"

namespace dofla {

// What a layer remembers. How many keys it holds follows from the number of tokens seen.
struct HybridAttentionState {
  Tensor k, v;                // [B, ΣK, D], of the type of keys; of a head the oldest first
  Tensor score;               // [B, ΣK] F32
  LinearAttentionState left;  // undefined where there are no features

  int64_t bytes() const;
};

HybridAttentionState new_hybrid_attention_state(int64_t batch, int64_t key_heads, int64_t width,
                                                DType type, const Device& device,
                                                const Features& features, const ExactKeys& exact);

// Attends T new tokens to themselves and to the `past` tokens of every sequence in `state`, which
// then holds them too. Without a state the tokens are whole sequences, and the tape, where there is
// one, receives what the backward wants. Returns [B, T, H, D].
Tensor hybrid_attention(const Tensor& q,  // [B, H, T, D]
                        const Tensor& k,  // [B, Hkv, T, D]
                        const Tensor& v,  // [B, Hkv, T, D]
                        const Features& features, const ExactKeys& exact,
                        HybridAttentionState* state = nullptr, int64_t past = 0,
                        AttentionTape* tape = nullptr);

// The same for one token of sequences that have seen different numbers of tokens. Returns
// [B, 1, H, D].
Tensor hybrid_attention_step(const Tensor& q,  // [B, H, 1, D]
                             const Tensor& k,  // [B, Hkv, 1, D]
                             const Tensor& v,  // [B, Hkv, 1, D]
                             const Features& features, const ExactKeys& exact,
                             HybridAttentionState& state,
                             const Tensor& past);  // [B] I64, on the same device

// Gradients of whole sequences from the forward's tape.
LinearAttentionGradients hybrid_attention_backward(const Tensor& q,  // [B, H, T, D]
                                                   const Tensor& k,  // [B, Hkv, T, D]
                                                   const Tensor& v,  // [B, Hkv, T, D]
                                                   const Features& features, const ExactKeys& exact,
                                                   const Tensor& grad_out,  // [B, T, H, D]
                                                   const AttentionTape& tape,
                                                   const GradientBuffers& buffers = {});

// The two halves of a step that trains features alone. Which keys are held and what they give does
// not depend on the features: from the tape of a forward without any (Features{}), once for any
// number of them, to that of the forward with these.
AttentionTape with_features(const Tensor& q,  // [B, H, T, D]
                            const Tensor& k,  // [B, Hkv, T, D]
                            const Tensor& v,  // [B, Hkv, T, D]
                            const Features& features, const ExactKeys& exact,
                            const AttentionTape& held);
// hybrid_attention_backward() as far as it concerns the features.
FeatureGradients hybrid_feature_gradients(const Tensor& q,  // [B, H, T, D]
                                          const Tensor& k,  // [B, Hkv, T, D]
                                          const Tensor& v,  // [B, Hkv, T, D]
                                          const Features& features, const ExactKeys& exact,
                                          const Tensor& grad_out,  // [B, T, H, D]
                                          const AttentionTape& tape);

// What the cache leaves to the features of a layer: the queries that see keys which have left,
// these keys in the order in which they leave, and what the rows hold beside them. Query i sees the
// keys j / block ≤ i / block, R is a multiple of the block: rows of a last, incomplete one are left
// out. Heads that hold more keys leave fewer pairs: their last rows are padding, with kPaddedRest
// (ops/feature_loss.h).
struct LeftPairs {
  Tensor q;     // [B, H, R, D]
  Tensor k;     // [B, Hkv, R, D]
  Tensor rest;  // [B, H, R] F32: log Σ K(q_i, k_j) over the keys that are held
};
LeftPairs left_pairs(const Tensor& q,  // [B, H, T, D]
                     const Tensor& k,  // [B, Hkv, T, D]
                     const Tensor& v,  // [B, Hkv, T, D]
                     const ExactKeys& exact);

// What a device has to implement; ops/hybrid_attention.cc does the rest with other ops.
struct HybridAttentionBackend {
  // Merges what is attended exactly with what has left: rows `first` to T of out and log_sum become
  // those of both together; `first` is that of every key head. left_log_sum is without −|q|²/(2√D),
  // as linear_attention has it.
  void (*merge)(const Tensor& q,             // [B, H, T, D]
                const Tensor& left_out,      // [B, R, H, D], R ≥ T − first
                const Tensor& left_log_sum,  // [B, H, R] F32
                const std::vector<int64_t>& first,
                Tensor& out,       // [B, T, H, D]
                Tensor& log_sum);  // [B, H, T] F32
  // What the norm of a query, −|q|²/(2√D) in all of its log features, adds to the gradient of q:
  // for rows `first` to T, grad_q −= q/√D · exp(left − both) · grad_out·(left_out − out), with left
  // and both the logarithms of the denominators. Also turns left_log_sum into both + |q|²/(2√D),
  // which linear_attention_backward wants; 0 in the rows beyond T − first.
  void (*merge_backward)(const Tensor& q, const Tensor& left_out, const Tensor& out,
                         const Tensor& log_sum,
                         const Tensor& grad_out,  // [B, T, H, D]
                         const std::vector<int64_t>& first, Tensor& left_log_sum, Tensor& grad_q);
  Tensor (*step)(const Tensor& q, const Tensor& k, const Tensor& v, const Features& features,
                 const ExactKeys& exact, HybridAttentionState& state, const Tensor& past);
};
namespace cpu {
extern const HybridAttentionBackend kHybridAttention;
}
namespace cuda {
extern const HybridAttentionBackend kHybridAttention;
}

}  // namespace dofla
