#include "dofla/ops/exact_keys.h"

#include <algorithm>
#include <cmath>

#include "dofla/core/parallel.h"
#include "dofla/ops/cpu/key_segments.h"
#include "dofla/ops/cpu/sgemm.h"
#include "dofla/ops/cpu/vector_rows.h"

namespace dofla::cpu {
namespace {

Tensor exact_attention(const Tensor& q, const Tensor& k, const Tensor& v, const ExactKeys& exact,
                       const std::vector<HeadCache>& caches, const Evictions& evictions,
                       Tensor* log_sum) {
  const int64_t batch = q.size(0), heads = q.size(1), tokens = q.size(2), width = q.size(3);
  const int64_t key_heads = k.size(1), keys = k.size(2), group = heads / key_heads;
  Tensor out({batch, tokens, heads, width}), sums({batch, heads, tokens});
  float* const to = out.data<float>();
  float* const logs = sums.data<float>();
  parallel_for(batch * heads, [&](int64_t index) {
    const SingleThreaded alone;
    const int64_t key_head = index / group;  // b·Hkv + h / group
    const HeadCache& cache = caches[static_cast<size_t>(key_head % key_heads)];
    std::vector<float> own_k, own_v, logits;
    for (const Segment& segment : segments_of(evictions, key_head, cache, exact.block)) {
      collect(k.data<float>() + key_head * keys * width, segment, width, own_k);
      collect(v.data<float>() + key_head * keys * width, segment, width, own_v);
      const int64_t first = segment.first - cache.before;
      logits_of(segment, q.data<float>() + (index * tokens + first) * width, own_k.data(), width,
                logits);
      for (int64_t r = 0; r < segment.queries; ++r) {
        float* row = logits.data() + r * segment.count();
        const int64_t seen = segment.seen(r);
        const float top = row_max(row, seen);
        const float total = exp_and_sum(top, seen, row);
        scale_row(1 / total, seen, row);
        std::fill(row + seen, row + segment.count(), 0.0f);
        logs[index * tokens + first + r] = top + std::log(total);
      }
      sgemm({}, segment.queries, width, segment.count(), logits.data(), segment.count(),
            own_v.data(), width,
            to + ((index / heads * tokens + first) * heads + index % heads) * width, heads * width);
    }
  });
  if (log_sum != nullptr) *log_sum = sums;
  return out;
}

// As in softmax_attention_backward.cc, segment by segment; a key head's gradients add up in the
// order of its query heads and segments.
ExactAttentionGradients exact_attention_backward(const Tensor& q, const Tensor& k, const Tensor& v,
                                                 const ExactKeys& exact,
                                                 const std::vector<HeadCache>& caches,
                                                 const Evictions& evictions, const Tensor& grad_out,
                                                 const AttentionTape& tape,
                                                 const GradientBuffers& buffers) {
  const int64_t batch = q.size(0), heads = q.size(1), tokens = q.size(2), width = q.size(3);
  const int64_t key_heads = k.size(1), group = heads / key_heads;
  const float scale = 1 / std::sqrt(static_cast<float>(width));
  ExactAttentionGradients gradients = {Tensor(q.shape()), Tensor::zeros(k.shape()),
                                       Tensor::zeros(v.shape())};
  float* const to[] = {gradients.q.data<float>(), gradients.k.data<float>(),
                       gradients.v.data<float>()};
  parallel_for(batch * key_heads, [&](int64_t key_head) {
    const SingleThreaded alone;
    const int64_t at = key_head * tokens * width;
    std::vector<float> own_k, own_v, p, d, grad_k, grad_v;
    for (const Segment& segment : segments_of(
             evictions, key_head, caches[static_cast<size_t>(key_head % key_heads)], exact.block)) {
      const int64_t rows = segment.queries, count = segment.count();
      collect(k.data<float>() + at, segment, width, own_k);
      collect(v.data<float>() + at, segment, width, own_v);
      d.resize(static_cast<size_t>(rows * count));
      grad_k.assign(static_cast<size_t>(count * width), 0.0f);
      grad_v.assign(static_cast<size_t>(count * width), 0.0f);
      for (int64_t index = key_head * group; index < (key_head + 1) * group; ++index) {
        const float* queries = q.data<float>() + (index * tokens + segment.first) * width;
        const int64_t row =
            ((index / heads * tokens + segment.first) * heads + index % heads) * width;
        const float* g = grad_out.data<float>() + row;
        const float* out = tape.out.data<float>() + row;
        const float* logs = tape.log_sum.data<float>() + index * tokens + segment.first;
        logits_of(segment, queries, own_k.data(), width, p);
        sgemm({.transpose_b = true}, rows, count, width, g, heads * width, own_v.data(), width,
              d.data(), count);
        for (int64_t r = 0; r < rows; ++r) {
          float* weight = p.data() + r * count;
          float* gradient = d.data() + r * count;
          const int64_t seen = segment.seen(r), step = r * heads * width;
          exp_and_sum(logs[r], seen, weight);
          add_constant(-dot(g + step, out + step, width), seen, gradient);
          multiply(weight, seen, gradient);
          std::fill(weight + seen, weight + count, 0.0f);
          std::fill(gradient + seen, gradient + count, 0.0f);
        }
        sgemm({.alpha = scale}, rows, width, count, d.data(), count, own_k.data(), width,
              to[0] + (index * tokens + segment.first) * width, width);
        sgemm({.transpose_a = true, .alpha = scale, .beta = 1}, count, width, rows, d.data(), count,
              queries, width, grad_k.data(), width);
        sgemm({.transpose_a = true, .beta = 1}, count, width, rows, p.data(), count, g,
              heads * width, grad_v.data(), width);
      }
      add_collected(grad_k, segment, width, to[1] + at);
      add_collected(grad_v, segment, width, to[2] + at);
    }
  });
  move_into(buffers.q, gradients.q);
  move_into(buffers.k, gradients.k);
  move_into(buffers.v, gradients.v);
  return gradients;
}

}  // namespace

const ExactKeysBackend kExactKeys = {evict_least_attended, exact_attention,
                                     exact_attention_backward};

}  // namespace dofla::cpu
