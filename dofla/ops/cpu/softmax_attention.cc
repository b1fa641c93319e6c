#include "dofla/ops/softmax_attention.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "dofla/core/parallel.h"
#include "dofla/ops/cpu/sgemm.h"
#include "dofla/ops/cpu/vector_rows.h"

namespace dofla::cpu {
namespace {

constexpr int64_t kQueryTile = 64;
constexpr int64_t kKeyTile = 256;

// One head of one sequence.
struct Head {
  const float* q;  // [T, D]
  const float* k;  // [keys, D]
  const float* v;  // [keys, D]
  float* out;      // row t at out + t · out_stride
  int64_t out_stride;
  int64_t queries, keys, size;
  float* log_sum;  // [T], or null
};

struct Scratch {
  std::vector<float> scores;  // [kQueryTile, kKeyTile]
  std::vector<float> sums;    // [kQueryTile, D]
  std::vector<float> largest, total;
};

// Softmax over keys that come a tile at a time: keep the largest score so far and rescale what was
// summed when a larger one appears.
void attend_tile(const Head& head, int64_t first_query, int64_t count, Scratch& scratch) {
  const int64_t size = head.size, past = head.keys - head.queries;
  const float scale = 1 / std::sqrt(static_cast<float>(size));
  scratch.scores.resize(kQueryTile * kKeyTile);
  scratch.sums.assign(static_cast<size_t>(count * size), 0.0f);
  scratch.largest.assign(static_cast<size_t>(count), -std::numeric_limits<float>::infinity());
  scratch.total.assign(static_cast<size_t>(count), 0.0f);
  const int64_t visible = past + first_query + count;  // keys the tile's last query sees
  for (int64_t begin = 0; begin < visible; begin += kKeyTile) {
    const int64_t width = std::min(kKeyTile, visible - begin);
    sgemm({.transpose_b = true, .alpha = scale}, count, width, size, head.q + first_query * size,
          size, head.k + begin * size, size, scratch.scores.data(), kKeyTile);
    for (int64_t r = 0; r < count; ++r) {
      float* row = scratch.scores.data() + r * kKeyTile;
      const int64_t seen = std::clamp<int64_t>(past + first_query + r + 1 - begin, 0, width);
      std::fill(row + seen, row + width, 0.0f);
      if (seen == 0) continue;
      float& largest = scratch.largest[static_cast<size_t>(r)];
      float& total = scratch.total[static_cast<size_t>(r)];
      const float top = std::max(largest, row_max(row, seen));
      if (top > largest) {
        const float shrink = std::exp(largest - top);
        scale_row(shrink, size, scratch.sums.data() + r * size);
        total *= shrink;
        largest = top;
      }
      total += exp_and_sum(top, seen, row);
    }
    sgemm({.beta = 1}, count, size, width, scratch.scores.data(), kKeyTile, head.v + begin * size,
          size, scratch.sums.data(), size);
  }
  for (int64_t r = 0; r < count; ++r) {
    float* to = head.out + (first_query + r) * head.out_stride;
    std::copy_n(scratch.sums.data() + r * size, size, to);
    const float total = scratch.total[static_cast<size_t>(r)];
    scale_row(1 / total, size, to);
    if (head.log_sum != nullptr)
      head.log_sum[first_query + r] = scratch.largest[static_cast<size_t>(r)] + std::log(total);
  }
}

// Decoding: one query, so the cost is reading keys and values once.
void attend_one(const Head& head, Scratch& scratch) {
  const float scale = 1 / std::sqrt(static_cast<float>(head.size));
  scratch.scores.assign(static_cast<size_t>(head.keys), 0.0f);
  float* scores = scratch.scores.data();
  add_matrix_vector(head.k, head.q, scale, head.keys, head.size, scores);
  const float largest = row_max(scores, head.keys);
  const float total = exp_and_sum(largest, head.keys, scores);
  if (head.log_sum != nullptr) *head.log_sum = largest + std::log(total);
  std::fill_n(head.out, head.size, 0.0f);
  add_weighted_rows(head.v, scores, head.keys, head.size, head.out);
  scale_row(1 / total, head.size, head.out);
}

void softmax_attention(const Tensor& q, const Tensor& k, const Tensor& v, int64_t keys,
                       const Tensor& past, Tensor& out, Tensor* log_sum) {
  const int64_t batch = q.size(0), heads = q.size(1), tokens = q.size(2), size = q.size(3);
  const int64_t kv_heads = k.size(1), capacity = k.size(2);
  const int64_t tiles = (tokens + kQueryTile - 1) / kQueryTile;
  float* to = out.data<float>();
  if (log_sum != nullptr) *log_sum = Tensor({batch, heads, tokens});
  float* sums = log_sum == nullptr ? nullptr : log_sum->data<float>();
  parallel_for(batch * heads * tiles, [&](int64_t task) {
    thread_local Scratch scratch;
    // Late tiles see more keys: they go first, so that the cores finish together.
    const int64_t tile = tiles - 1 - task / (batch * heads);
    const int64_t b = task % (batch * heads) / heads, h = task % heads;
    const int64_t source = (b * kv_heads + h * kv_heads / heads) * capacity * size;
    const Head head = {.q = q.data<float>() + (b * heads + h) * tokens * size,
                       .k = k.data<float>() + source,
                       .v = v.data<float>() + source,
                       .out = to + (b * tokens * heads + h) * size,
                       .out_stride = heads * size,
                       .queries = tokens,
                       .keys = past.defined() ? past.data<int64_t>()[b] + tokens : keys,
                       .size = size,
                       .log_sum = sums == nullptr ? nullptr : sums + (b * heads + h) * tokens};
    if (tokens == 1) return attend_one(head, scratch);
    const int64_t first = tile * kQueryTile;
    attend_tile(head, first, std::min(kQueryTile, tokens - first), scratch);
  });
}

}  // namespace

const SoftmaxAttentionBackend kSoftmaxAttention = {softmax_attention, softmax_attention_backward};

}  // namespace dofla::cpu
