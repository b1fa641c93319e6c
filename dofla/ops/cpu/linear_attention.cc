#include "dofla/ops/linear_attention.h"

#include <algorithm>
#include <span>

#include "dofla/core/parallel.h"
#include "dofla/ops/cpu/linear_attention_chunk.h"
#include "dofla/ops/cpu/positive_features.h"

namespace dofla::cpu {
namespace {

// One head that has a state in one sequence, with the query heads that read it.
struct Task {
  std::span<const HeadFeatures> features;  // of the query heads
  const float* q;                          // [group, T, D]
  const float* k;                          // [T, D]
  const float* v;                          // [T, D]
  int64_t tokens;                          // T
  int64_t own;                             // how many of them the head has
  HeadState state;
  float* out;  // [T, group, D], tokens out_stride apart
  int64_t out_stride;
  float* log_sum;  // [group, T], or null
  int64_t block;

  int64_t group() const { return static_cast<int64_t>(features.size()); }
};

struct Scratch {
  Scratch(int64_t rows, int64_t count, int64_t group)
      : log_q(static_cast<size_t>(group * rows * count)),
        log_k(static_cast<size_t>(rows * count)),
        token_q(static_cast<size_t>(group * count)),
        token(static_cast<size_t>(3 * count)),
        keys(rows == 1 ? 0 : rows, rows == 1 ? 0 : count),
        queries(static_cast<size_t>(group), {rows == 1 ? 0 : rows, rows == 1 ? 0 : count}) {}

  std::vector<float> log_q;    // [group, rows, M]
  std::vector<float> log_k;    // [rows, M]
  std::vector<float> token_q;  // [group, M]
  std::vector<float> token;    // [3 M]
  KeyFactors keys;
  std::vector<QueryFactors> queries;  // [group]
};

void attend_row(Task& task, int64_t begin, int64_t row, int64_t longest, Scratch& scratch) {
  const int64_t count = task.state.count, width = task.state.width;
  for (int64_t i = 0; i < task.group(); ++i)
    std::copy_n(scratch.log_q.data() + (i * longest + row) * count, count,
                scratch.token_q.data() + i * count);
  attend_token(scratch.token_q.data(), task.group(), scratch.log_k.data() + row * count,
               task.v + (begin + row) * width, task.state, scratch.token.data(),
               task.out + (begin + row) * task.out_stride,
               task.log_sum == nullptr ? nullptr : task.log_sum + begin + row, task.tokens);
}

// Rows [first, last) of the chunk that begins at token `begin`, whose log features are in scratch,
// those of a query head `longest` rows after those of the one before.
void attend_rows(Task& task, int64_t begin, int64_t first, int64_t last, int64_t longest,
                 Scratch& scratch) {
  const int64_t count = task.state.count, width = task.state.width, rows = last - first;
  if (rows == 1) return attend_row(task, begin, first, longest, scratch);
  const float* v = task.v + (begin + first) * width;
  factor_chunk_keys(task.state, scratch.log_k.data() + first * count, rows, scratch.keys);
  bool exact = true;
  for (int64_t i = 0; exact && i < task.group(); ++i)
    exact = factor_chunk_queries(scratch.keys, scratch.log_q.data() + (i * longest + first) * count,
                                 rows, task.block, scratch.queries[static_cast<size_t>(i)]);
  if (!exact) {
    const int64_t middle = first + half_of_blocks(rows, task.block);
    attend_rows(task, begin, first, middle, longest, scratch);
    return attend_rows(task, begin, middle, last, longest, scratch);
  }
  decay_state(scratch.keys, task.state);
  for (int64_t i = 0; i < task.group(); ++i) {
    const QueryFactors& queries = scratch.queries[static_cast<size_t>(i)];
    chunk_output(task.state, queries, v, rows,
                 task.out + (begin + first) * task.out_stride + i * width, task.out_stride);
    for (int64_t row = 0; task.log_sum != nullptr && row < rows; ++row)
      task.log_sum[i * task.tokens + begin + first + row] = queries.log_sum(row);
  }
  absorb_chunk(scratch.keys, v, rows, task.state);
}

void attend(Task& task, int64_t chunk) {
  const int64_t count = task.state.count, width = task.state.width;
  const int64_t longest = std::min(chunk, task.own);
  Scratch scratch(longest, count, task.group());
  for (int64_t begin = 0; begin < task.own; begin += longest) {
    const int64_t rows = std::min(longest, task.own - begin);
    for (int64_t i = 0; i < task.group(); ++i)
      log_features_without_norm(task.features[static_cast<size_t>(i)].query,
                                task.q + (i * task.tokens + begin) * width, rows,
                                scratch.log_q.data() + i * longest * count);
    log_features(task.features.front().key, task.k + begin * width, rows, scratch.log_k.data());
    attend_rows(task, begin, 0, rows, longest, scratch);
  }
}

Tensor attend_all(const Tensor& q, const Tensor& k, const Tensor& v, const Features& features,
                  LinearAttentionState& state, int64_t chunk, Tensor* log_sum, int64_t block,
                  const std::vector<int64_t>& own_tokens = {}) {
  const int64_t batch = q.size(0), query_heads = q.size(1), tokens = q.size(2), width = q.size(3);
  const int64_t heads = features.heads(), group = features.group(), key_heads = k.size(1);
  const int64_t total = features.total();
  const std::vector<HeadFeatures> all = head_features(features);
  const std::vector<int64_t> offsets = features.offsets();
  Tensor out({batch, tokens, query_heads, width});
  if (log_sum != nullptr) *log_sum = Tensor({batch, query_heads, tokens});
  float* sums = log_sum == nullptr ? nullptr : log_sum->data<float>();
  const auto attend_head = [&, to = out.data<float>(), log_max = state.log_max.data<float>(),
                            a = state.a.data<float>(), b = state.b.data<float>()](int64_t index) {
    const int64_t sequence = index / heads, h = index % heads;
    const int64_t own_head = h / (heads / key_heads), key_head = sequence * key_heads + own_head;
    const int64_t feature = sequence * total + offsets[static_cast<size_t>(h)];
    const int64_t count = features.counts[static_cast<size_t>(h)];
    Task task{{all.data() + h * group, static_cast<size_t>(group)},
              q.data<float>() + index * group * tokens * width,
              k.data<float>() + key_head * tokens * width,
              v.data<float>() + key_head * tokens * width,
              tokens,
              own_tokens.empty() ? tokens : own_tokens[static_cast<size_t>(own_head)],
              {log_max + feature, a + feature, b + feature * width, count, width},
              to + (sequence * tokens * query_heads + h * group) * width,
              query_heads * width,
              sums == nullptr ? nullptr : sums + index * group * tokens,
              block};
    attend(task, chunk);
  };
  // A token's work on a small model is less than waking the other cores.
  constexpr int64_t kWorthThreads = int64_t{1} << 18;
  if (tokens * batch * group * total * width >= kWorthThreads) {
    parallel_for(batch * heads, attend_head);
  } else {
    for (int64_t i = 0; i < batch * heads; ++i) attend_head(i);
  }
  return out;
}

Tensor linear_attention(const Tensor& q, const Tensor& k, const Tensor& v, const Features& features,
                        LinearAttentionState* state, int64_t chunk, Tensor* log_sum, int64_t block,
                        const std::vector<int64_t>& tokens) {
  if (state != nullptr) return attend_all(q, k, v, features, *state, chunk, log_sum, block, tokens);
  LinearAttentionState fresh = new_linear_attention_state(q.size(0), features);
  return attend_all(q, k, v, features, fresh, chunk, log_sum, block, tokens);
}

Tensor linear_attention_step(const Tensor& q, const Tensor& k, const Tensor& v,
                             const Features& features, LinearAttentionState& state) {
  return attend_all(q, k, v, features, state, 1, nullptr, 1);
}

}  // namespace

const LinearAttentionBackend kLinearAttention = {linear_attention, linear_attention_step,
                                                 linear_attention_backward};

}  // namespace dofla::cpu
