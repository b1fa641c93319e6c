// Causal linear attention with positive features on a GPU: prefill, one token of many sequences,
// and gradients. As dofla/ops/linear_attention.h says, sums over keys are kept relative to the
// largest φ̃_m so far, feature by feature, in float32, and there is no ε. Log features are exact to
// 2^-17 of |z||x| for bf16 inputs and to float32 for float32 inputs; bounded factors enter products
// in the inputs' type. The same input gives the same bits. Nothing is allocated and nothing waits:
// the caller brings the workspace, and every launch can be captured in a graph.
#pragma once

#include <cmath>

#include "dofla/ops/cuda/head_rows.h"

namespace dofla::cuda {

// Key head h serves the query heads h·H/Hkv to (h+1)·H/Hkv − 1.
struct LinearAttentionShape {
  Element element;
  int64_t batch, heads, key_heads;  // H <= kMostHeads
  int64_t tokens;                   // T
  int64_t width;                    // D <= kWidestHead
  int64_t block = 1;  // keys that become visible together: a divisor of a chunk and of T
  const int64_t* own_tokens = nullptr;  // on the CPU: how many every key head has; null: T
};

// Tokens that a kernel takes at once; shared memory decides.
inline int64_t linear_attention_chunk(const LinearAttentionShape& shape) {
  return shape.element == Element::kF32 && shape.width > 64 ? 32 : 64;
}

// Every query head has its own features and a state, or, where they are untied, every key head:
// query heads then have directions of their own for queries.
struct LinearAttentionFeatures {
  const int64_t* counts;     // on the CPU: M of every head that has a state, each at least 1
  const float* z;            // [ΣM, D]
  const float* log_alpha;    // [ΣM]
  bool subtract_norm;        // whether log φ̃ has its term −|x|²/(2√d)
  const float* u = nullptr;  // [group · ΣM, D], or null where tied
  const float* norm_weight = nullptr;  // [Hkv]: η, or null where tied

  // Query heads that read one state.
  int64_t sharing(const LinearAttentionShape& shape) const {
    return u == nullptr ? 1 : shape.heads / shape.key_heads;
  }
};

// What z·x and |x|² are multiplied by in log φ̃(x).
struct FeatureScales {
  float inner, norm;
};
inline FeatureScales feature_scales(int64_t width, bool subtract_norm) {
  const auto size = static_cast<double>(width);
  return {static_cast<float>(std::pow(size, -0.25)),
          static_cast<float>(subtract_norm ? 0.5 / std::sqrt(size) : 0.0)};
}

// What every sequence has seen, as LinearAttentionState; an empty one has log_max −∞ and sums 0.
struct LinearAttentionSums {
  float* log_max;  // [B, ΣM]
  float* a;        // [B, ΣM]
  float* b;        // [B, ΣM, D]
};

int64_t linear_attention_workspace_bytes(const LinearAttentionShape& shape,
                                         const LinearAttentionFeatures& features);

// Attends T new tokens to themselves and to those in `sums`, which then holds them too. Without
// sums (log_max null) the tokens are the whole sequence.
cudaError_t launch_linear_attention(const LinearAttentionShape& shape,
                                    const LinearAttentionFeatures& features,
                                    const HeadRows& q,  // [B, H, T, D]
                                    const HeadRows& k,  // [B, Hkv, T, D]
                                    const HeadRows& v,  // [B, Hkv, T, D]
                                    const LinearAttentionSums& sums,
                                    const HeadRowsOut& out,  // [B, H, T, D], in any order
                                    float* log_sum,  // [B, H, T]: log of the denominators, leaving
                                                     // out −|q|²/(2√d); for the backward, or null
                                    void* workspace, cudaStream_t stream);

// The same for one token of every sequence, T = 1, in one launch and without a workspace. It may
// overlap with the launch ahead (overlap.cuh), if none of the chain's other kernels writes the
// sums.
cudaError_t launch_linear_attention_step(const LinearAttentionShape& shape,
                                         const LinearAttentionFeatures& features, const HeadRows& q,
                                         const HeadRows& k, const HeadRows& v,
                                         const LinearAttentionSums& sums, const HeadRowsOut& out,
                                         bool overlapped, cudaStream_t stream);

struct LinearAttentionGradientsOut {
  HeadRowsOut q;                 // [B, H, T, D]
  HeadRowsOut k;                 // [B, Hkv, T, D]
  HeadRowsOut v;                 // [B, Hkv, T, D]
  float* z;                      // [ΣM, D]
  float* log_alpha;              // [ΣM]
  float* u = nullptr;            // [group · ΣM, D], of untied features
  float* norm_weight = nullptr;  // [Hkv], of untied features
};

int64_t linear_attention_backward_workspace_bytes(const LinearAttentionShape& shape,
                                                  const LinearAttentionFeatures& features);

// Gradients of whole sequences; `out` and `log_sum` are those of the forward.
cudaError_t launch_linear_attention_backward(const LinearAttentionShape& shape,
                                             const LinearAttentionFeatures& features,
                                             const HeadRows& q, const HeadRows& k,
                                             const HeadRows& v, const HeadRows& out,
                                             const float* log_sum, const HeadRows& grad_out,
                                             const LinearAttentionGradientsOut& gradients,
                                             void* workspace, cudaStream_t stream);

}  // namespace dofla::cuda
