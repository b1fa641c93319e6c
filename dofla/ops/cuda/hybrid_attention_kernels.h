// Attention to exact keys and to features in one softmax (ops/hybrid_attention.h): how the two
// parts of whole sequences become one, and one token of many sequences.
#pragma once

#include "dofla/ops/cuda/exact_keys_kernels.h"
#include "dofla/ops/cuda/linear_attention_kernels.h"

namespace dofla::cuda {

struct MergeShape {
  Element element;
  int64_t batch, heads, key_heads, tokens, width;
  int64_t left_rows;             // R >= T − first
  int32_t first[kMostKeyHeads];  // of every key head: the first token that sees keys which left
};

// Row `first` + r of a head of out and log_sum becomes that of both parts; row r of `left` is the
// part that has left.
cudaError_t launch_merge_left(const MergeShape& shape,
                              const HeadRows& q,          // [B, H, T, D]
                              const HeadRows& left_out,   // [B, H, R, D]
                              const float* left_log_sum,  // [B, H, R], without −|q|²/(2√D)
                              const HeadRowsOut& out,     // [B, H, T, D]
                              float* log_sum,             // [B, H, T]
                              cudaStream_t stream);

// Adds to grad_q what comes through the norm of a query, and turns left_log_sum into
// log_sum + |q|²/(2√D), or 0 in rows without a query.
cudaError_t launch_merge_left_backward(const MergeShape& shape, const HeadRows& q,
                                       const HeadRows& left_out, const HeadRows& out,
                                       const float* log_sum, const HeadRows& grad_out,
                                       float* left_log_sum,        // [B, H, R]
                                       const HeadRowsOut& grad_q,  // [B, H, T, D]
                                       cudaStream_t stream);

// Where every key head has its keys, how many it can hold, and the score that a new one begins
// with.
struct CachePlaces {
  int32_t limit[kMostKeyHeads], first[kMostKeyHeads];
  float first_score[kMostKeyHeads];
  int32_t total;  // ΣK
};

// What the cache of a layer is.
struct ExactCache {
  void *k, *v;   // [B, ΣK, D]
  float* score;  // [B, ΣK]
  CachePlaces places;
  int64_t block, sinks, recent;  // recent 0: half of a head's keys
  double decay;
  bool by_score;  // whether the least attended leave; otherwise the oldest
};

// One token of every sequence, T = 1, in one launch that a graph can record. Without features
// (counts null) what leaves is forgotten.
cudaError_t launch_hybrid_attention_step(const LinearAttentionShape& shape,
                                         const LinearAttentionFeatures& features,
                                         const ExactCache& cache,
                                         const int64_t* past,  // [B]: tokens seen
                                         const HeadRows& q,    // [B, H, 1, D]
                                         const HeadRows& k,    // [B, Hkv, 1, D]
                                         const HeadRows& v,    // [B, Hkv, 1, D]
                                         const LinearAttentionSums& sums,
                                         const HeadRowsOut& out,  // [B, H, 1, D]
                                         cudaStream_t stream);

}  // namespace dofla::cuda
