// With p_i the weights of query i, g_i its output's gradient and d_ij = g_i·v_j,
//   grad_v_j = Σ_i p_ij g_i,   grad_score_ij = p_ij (d_ij − Σ_l p_il d_il).
// A tile of queries is multiplied with all the keys it sees at once, so that its scores are
// computed only once.
#include <algorithm>
#include <cmath>
#include <vector>

#include "dofla/core/parallel.h"
#include "dofla/ops/cpu/sgemm.h"
#include "dofla/ops/cpu/vector_rows.h"
#include "dofla/ops/heads.h"
#include "dofla/ops/softmax_attention.h"

namespace dofla::cpu {
namespace {

constexpr int64_t kQueryTile = 64;

// One query head of one sequence. Gradients of keys and values are those from this head alone.
struct Head {
  const float* q;          // [T, D]
  const float *k, *v;      // [N, D]
  const float* g;          // grad_out, row t at g + t · stride
  const float* out;        // of the tape, row t at out + t · stride; null without a tape
  const float* log_sum;    // [T], of the tape
  float* grad_q;           // [T, D]
  float *grad_k, *grad_v;  // [N, D]; start at 0
  int64_t past;            // N − T
  int64_t stride, size;
};

struct Scratch {
  std::vector<float> weights, gradients;  // [kQueryTile, N]
};

void backward_tile(const Head& head, int64_t first, int64_t count, Scratch& scratch) {
  const int64_t size = head.size, visible = head.past + first + count;
  const float scale = 1 / std::sqrt(static_cast<float>(size));
  float* p = scratch.weights.data();
  float* d = scratch.gradients.data();
  const float* q = head.q + first * size;
  const float* g = head.g + first * head.stride;
  sgemm({.transpose_b = true, .alpha = scale}, count, visible, size, q, size, head.k, size, p,
        visible);
  sgemm({.transpose_b = true}, count, visible, size, g, head.stride, head.v, size, d, visible);
  for (int64_t r = 0; r < count; ++r) {
    float* weight = p + r * visible;
    float* gradient = d + r * visible;
    const int64_t seen = head.past + first + r + 1;
    float mean = 0;  // Σ_l p_il d_il, which is g_i·out_i
    if (head.out == nullptr) {
      scale_row(1 / exp_and_sum(row_max(weight, seen), seen, weight), seen, weight);
      mean = dot(weight, gradient, seen);
    } else {
      exp_and_sum(head.log_sum[first + r], seen, weight);
      mean = dot(g + r * head.stride, head.out + (first + r) * head.stride, size);
    }
    add_constant(-mean, seen, gradient);
    multiply(weight, seen, gradient);
    std::fill(weight + seen, weight + visible, 0.0f);
    std::fill(gradient + seen, gradient + visible, 0.0f);
  }
  sgemm({.alpha = scale}, count, size, visible, d, visible, head.k, size,
        head.grad_q + first * size, size);
  sgemm({.transpose_a = true, .alpha = scale, .beta = 1}, visible, size, count, d, visible, q, size,
        head.grad_k, size);
  sgemm({.transpose_a = true, .beta = 1}, visible, size, count, p, visible, g, head.stride,
        head.grad_v, size);
}

}  // namespace

SoftmaxAttentionGradients softmax_attention_backward(const Tensor& q, const Tensor& k,
                                                     const Tensor& v, const Tensor& grad_out,
                                                     const AttentionTape& tape,
                                                     const GradientBuffers& buffers) {
  const int64_t heads = q.size(1), tokens = q.size(2), size = q.size(3), key_heads = k.size(1);
  const int64_t keys = k.size(2);
  const Shape by_query_head = {q.size(0), heads, keys, size};
  Tensor grad_q(q.shape());
  Tensor grad_k = Tensor::zeros(by_query_head), grad_v = Tensor::zeros(by_query_head);
  float* const to[] = {grad_q.data<float>(), grad_k.data<float>(), grad_v.data<float>()};
  parallel_for(q.size(0) * heads, [&](int64_t index) {
    thread_local Scratch scratch;
    const SingleThreaded alone;
    const int64_t b = index / heads, h = index % heads;
    const int64_t source = (b * key_heads + h / (heads / key_heads)) * keys * size;
    const int64_t row = (b * tokens * heads + h) * size;  // the head's first, of [B, T, H, D]
    const bool taped = tape.log_sum.defined();
    const Head head = {.q = q.data<float>() + index * tokens * size,
                       .k = k.data<float>() + source,
                       .v = v.data<float>() + source,
                       .g = grad_out.data<float>() + row,
                       .out = taped ? tape.out.data<float>() + row : nullptr,
                       .log_sum = taped ? tape.log_sum.data<float>() + index * tokens : nullptr,
                       .grad_q = to[0] + index * tokens * size,
                       .grad_k = to[1] + index * keys * size,
                       .grad_v = to[2] + index * keys * size,
                       .past = keys - tokens,
                       .stride = heads * size,
                       .size = size};
    const auto pairs = static_cast<size_t>(std::min(kQueryTile, tokens) * keys);
    scratch.weights.resize(pairs);
    scratch.gradients.resize(pairs);
    for (int64_t first = 0; first < tokens; first += kQueryTile)
      backward_tile(head, first, std::min(kQueryTile, tokens - first), scratch);
  });
  SoftmaxAttentionGradients gradients = {grad_q, sum_over_groups(grad_k, key_heads),
                                         sum_over_groups(grad_v, key_heads)};
  move_into(buffers.q, gradients.q);
  move_into(buffers.k, gradients.k);
  move_into(buffers.v, gradients.v);
  return gradients;
}

}  // namespace dofla::cpu
