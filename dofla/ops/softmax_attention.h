// Causal softmax attention, tile by tile: no T×T matrix is ever stored. On a GPU q, k and v may be
// views.
#pragma once

#include "dofla/ops/attention_tape.h"
#include "dofla/ops/gradient_buffers.h"

namespace dofla {

// The last T of `keys` tokens ask; query t sees the keys up to its own. Key head h serves the
// query heads h·H/Hkv to (h+1)·H/Hkv − 1. k and v may hold more rows than `keys`: the rest is
// reserved. Where sequences are not equally long, `past` says how many keys of each come before its
// first query, and `keys` holds for the longest; on a GPU that is not checked. Returns
// [B, T, H, D], and what the backward can use of it on the tape where there is one.
Tensor softmax_attention(const Tensor& q,  // [B, H, T, D], F32
                         const Tensor& k,  // [B, Hkv, capacity, D], F32
                         const Tensor& v,  // [B, Hkv, capacity, D], F32
                         int64_t keys,     // T <= keys <= capacity
                         AttentionTape* tape = nullptr,
                         const Tensor& past = {});  // [B], I64, on the same device

struct SoftmaxAttentionGradients {
  Tensor q;  // [B, H, T, D]
  Tensor k;  // [B, Hkv, N, D]
  Tensor v;  // [B, Hkv, N, D]
};

// Gradients of the last T of N tokens as queries, from the forward's tape, in the given buffers,
// those of keys and values of all N; memory O(N) a core besides the results. The tape's out and
// log_sum may be those of attention to more keys, of which these are a part: the gradients are then
// this part's.
SoftmaxAttentionGradients softmax_attention_backward(const Tensor& q,         // [B, H, T, D], F32
                                                     const Tensor& k,         // [B, Hkv, N, D], F32
                                                     const Tensor& v,         // [B, Hkv, N, D], F32
                                                     const Tensor& grad_out,  // [B, T, H, D], F32
                                                     const AttentionTape& tape = {},
                                                     const GradientBuffers& buffers = {});

// What a device has to implement; ops/softmax_attention.cc checks the arguments and picks the
// device.
struct SoftmaxAttentionBackend {
  // Fills in `log_sum` unless it is null.
  void (*forward)(const Tensor& q, const Tensor& k, const Tensor& v, int64_t keys,
                  const Tensor& past, Tensor& out, Tensor* log_sum);
  SoftmaxAttentionGradients (*backward)(const Tensor& q, const Tensor& k, const Tensor& v,
                                        const Tensor& grad_out, const AttentionTape& tape,
                                        const GradientBuffers& buffers);
};
namespace cpu {
extern const SoftmaxAttentionBackend kSoftmaxAttention;
SoftmaxAttentionGradients softmax_attention_backward(const Tensor& q, const Tensor& k,
                                                     const Tensor& v, const Tensor& grad_out,
                                                     const AttentionTape& tape,
                                                     const GradientBuffers& buffers);
}  // namespace cpu
namespace cuda {
extern const SoftmaxAttentionBackend kSoftmaxAttention;
}  // namespace cuda

}  // namespace dofla
