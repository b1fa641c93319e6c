// Causal softmax attention, tile by tile: no T×T matrix is ever stored. On a GPU q, k and v may be
// views.
#pragma once

#include "dofla/ops/attention_tape.h"
#include "dofla/ops/gradient_room.h"

namespace dofla {

// The last T of `keys` tokens ask; query t sees the keys up to its own. Key head h serves the
// query heads h·H/Hkv to (h+1)·H/Hkv − 1. k and v may hold more rows than `keys`: the rest is room
// to grow. Returns [B, T, H, D], and what the backward can use of it on the tape where there is
// one.
Tensor softmax_attention(const Tensor& q,  // [B, H, T, D], F32
                         const Tensor& k,  // [B, Hkv, capacity, D], F32
                         const Tensor& v,  // [B, Hkv, capacity, D], F32
                         int64_t keys,     // T <= keys <= capacity
                         AttentionTape* tape = nullptr);

struct SoftmaxAttentionGradients {
  Tensor q;  // [B, H, T, D]
  Tensor k;  // [B, Hkv, T, D]
  Tensor v;  // [B, Hkv, T, D]
};

// Gradients of a whole sequence, from the forward's tape, in the room there is for them; memory
// O(T) a core besides the results.
SoftmaxAttentionGradients softmax_attention_backward(const Tensor& q,         // [B, H, T, D], F32
                                                     const Tensor& k,         // [B, Hkv, T, D], F32
                                                     const Tensor& v,         // [B, Hkv, T, D], F32
                                                     const Tensor& grad_out,  // [B, T, H, D], F32
                                                     const AttentionTape& tape = {},
                                                     const GradientRoom& room = {});

}  // namespace dofla
