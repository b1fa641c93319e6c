// Causal softmax attention and its gradients, tile by tile: no T×T matrix is ever stored. Sums and
// statistics are float32; probabilities enter the second product in the inputs' type. The same
// input gives the same bits. Nothing is allocated and nothing waits: the caller brings the
// workspace.
#pragma once

#include "dofla/ops/cuda/head_rows.h"

namespace dofla::cuda {

// The last T of `keys` tokens ask; query t sees the keys up to its own. Key head h serves the query
// heads h·H/Hkv to (h+1)·H/Hkv − 1.
struct SoftmaxAttentionShape {
  Element element;
  int64_t batch, heads, key_heads;
  int64_t queries, keys;  // T <= keys
  int64_t width;          // D <= kWidestHead
};

// Whether the GPU has warpgroup products and this build has code for them.
bool warpgroups_available();

// 0 except for few queries and many keys, where the keys of a head are shared out among blocks.
int64_t softmax_attention_workspace_bytes(const SoftmaxAttentionShape& shape);

cudaError_t launch_softmax_attention(const SoftmaxAttentionShape& shape,
                                     const HeadRows& q,       // [B, H, T, D]
                                     const HeadRows& k,       // [B, Hkv, keys, D]
                                     const HeadRows& v,       // [B, Hkv, keys, D]
                                     const int64_t* past,     // [B]: keys before the first query of
                                                              // every sequence; null: keys − T
                                     const HeadRowsOut& out,  // [B, H, T, D], in any order
                                     float* log_sum,          // [B, H, T]: log Σ exp, or null
                                     void* workspace, cudaStream_t stream);

struct SoftmaxAttentionGradientsOut {
  HeadRowsOut q;  // [B, H, T, D]
  HeadRowsOut k;  // [B, Hkv, keys, D]
  HeadRowsOut v;  // [B, Hkv, keys, D]
};

int64_t softmax_attention_backward_workspace_bytes(const SoftmaxAttentionShape& shape);

// `out` and `log_sum` are those of the forward.
cudaError_t launch_softmax_attention_backward(const SoftmaxAttentionShape& shape, const HeadRows& q,
                                              const HeadRows& k, const HeadRows& v,
                                              const HeadRows& out, const float* log_sum,
                                              const HeadRows& grad_out,
                                              const SoftmaxAttentionGradientsOut& gradients,
                                              void* workspace, cudaStream_t stream);

}  // namespace dofla::cuda
