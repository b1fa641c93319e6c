// Which keys of a bounded cache leave, and attention to those that are held (ops/exact_keys.h). The
// same input gives the same bits. Nothing is allocated and nothing waits: the caller brings the
// workspace.
#pragma once

#include "dofla/ops/cuda/head_rows.h"

namespace dofla::cuda {

// Of N keys the last T have queries. Key head h serves the query heads h·H/Hkv to (h+1)·H/Hkv − 1.
struct ExactKeysShape {
  Element element;
  int64_t batch, heads, key_heads;
  int64_t queries, keys;  // T <= N, N − T <= limit
  int64_t width;          // D <= kWidestHead
  int64_t limit, block;   // K: the most that are held; how many leave together
  int64_t times;          // E: how often keys leave
};

struct EvictionRule {
  int64_t sinks, recent;
  double decay;
  float first_score;  // that a new key begins with
};

struct EvictionsOut {
  int32_t* order;  // [B, Hkv, E · block]
  int32_t* kept;   // [B, Hkv, E, K − block]
  int32_t* held;   // [B, Hkv, N − E · block]
  float* score;    // [B, Hkv, N − E · block]
};

// Chooses by the scores. The block of a key head has its keys in shared memory; in float32 they go
// to the workspace where there are too many. False for more bf16 keys than fit.
bool eviction_fits(const ExactKeysShape& shape);
int64_t eviction_workspace_bytes(const ExactKeysShape& shape);
cudaError_t launch_evict_keys(const ExactKeysShape& shape, const EvictionRule& rule,
                              const HeadRows& q,   // [B, H, T, D]
                              const HeadRows& k,   // [B, Hkv, N, D]
                              const float* score,  // [B, Hkv, N − T], or null if N = T
                              const EvictionsOut& evictions, void* workspace, cudaStream_t stream);

// Softmax attention to the keys that are held.
cudaError_t launch_exact_attention(const ExactKeysShape& shape,
                                   const HeadRows& q,       // [B, H, T, D]
                                   const HeadRows& k,       // [B, Hkv, N, D]
                                   const HeadRows& v,       // [B, Hkv, N, D]
                                   const int32_t* kept,     // [B, Hkv, E, K − block]
                                   const HeadRowsOut& out,  // [B, H, T, D], in any order
                                   float* log_sum,          // [B, H, T]: log Σ exp
                                   cudaStream_t stream);

struct ExactAttentionGradientsOut {
  HeadRowsOut q;  // [B, H, T, D]
  HeadRowsOut k;  // [B, Hkv, T, D]
  HeadRowsOut v;  // [B, Hkv, T, D]
};

int64_t exact_attention_backward_workspace_bytes(const ExactKeysShape& shape);

// Gradients of whole sequences, N = T. `out` and `log_sum` may be those of attention to more keys.
cudaError_t launch_exact_attention_backward(const ExactKeysShape& shape, const HeadRows& q,
                                            const HeadRows& k, const HeadRows& v,
                                            const int32_t* kept, const HeadRows& out,
                                            const float* log_sum, const HeadRows& grad_out,
                                            const ExactAttentionGradientsOut& gradients,
                                            void* workspace, cudaStream_t stream);

}  // namespace dofla::cuda
