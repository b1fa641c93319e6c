#include "dofla/ops/linear_attention.h"

#include <algorithm>

#include "dofla/core/parallel.h"
#include "dofla/ops/cpu/linear_attention_chunk.h"
#include "dofla/ops/cpu/positive_features.h"

namespace dofla::cpu {
namespace {

// One head of one sequence.
struct Task {
  const HeadFeatures& features;
  const float* q;  // [T, D]
  const float* k;  // [T, D]
  const float* v;  // [T, D]
  int64_t tokens;
  HeadState state;
  float* out;  // [T, D], rows out_stride apart
  int64_t out_stride;
};

struct Scratch {
  Scratch(int64_t rows, int64_t count)
      : log_q(static_cast<size_t>(rows * count)),
        log_k(static_cast<size_t>(rows * count)),
        token(static_cast<size_t>(3 * count)),
        factors(rows == 1 ? 0 : rows, rows == 1 ? 0 : count) {}

  std::vector<float> log_q, log_k;  // [rows, M]
  std::vector<float> token;         // [3 M]
  ChunkFactors factors;
};

// Rows [first, last) of the chunk that begins at token `begin`, whose log features are in scratch.
void attend_rows(Task& task, int64_t begin, int64_t first, int64_t last, Scratch& scratch) {
  const int64_t count = task.features.count, width = task.features.width, rows = last - first;
  const float* log_q = scratch.log_q.data() + first * count;
  const float* log_k = scratch.log_k.data() + first * count;
  const float* v = task.v + (begin + first) * width;
  float* out = task.out + (begin + first) * task.out_stride;
  if (rows == 1) {
    attend_token(log_q, log_k, v, task.state, scratch.token.data(), out);
  } else if (factor_chunk(task.state, log_q, log_k, rows, scratch.factors)) {
    decay_state(scratch.factors, task.state);
    chunk_output(task.state, scratch.factors, v, rows, out, task.out_stride);
    absorb_chunk(scratch.factors, v, rows, task.state);
  } else {
    const int64_t middle = first + rows / 2;
    attend_rows(task, begin, first, middle, scratch);
    attend_rows(task, begin, middle, last, scratch);
  }
}

void attend(Task& task, int64_t chunk) {
  const int64_t width = task.features.width;
  const int64_t longest = std::min(chunk, task.tokens);
  Scratch scratch(longest, task.features.count);
  for (int64_t begin = 0; begin < task.tokens; begin += longest) {
    const int64_t rows = std::min(longest, task.tokens - begin);
    log_features_without_norm(task.features, task.q + begin * width, rows, scratch.log_q.data());
    log_features(task.features, task.k + begin * width, rows, scratch.log_k.data());
    attend_rows(task, begin, 0, rows, scratch);
  }
}

Tensor attend_all(const Tensor& q, const Tensor& k, const Tensor& v, const Features& features,
                  LinearAttentionState& state, int64_t chunk) {
  const int64_t batch = q.size(0), heads = q.size(1), tokens = q.size(2), width = q.size(3);
  const int64_t key_heads = k.size(1), total = features.total();
  const std::vector<HeadFeatures> head = head_features(features);
  const std::vector<int64_t> offsets = features.offsets();
  Tensor out({batch, tokens, heads, width});
  const auto attend_head = [&, to = out.data<float>(), log_max = state.log_max.data<float>(),
                            a = state.a.data<float>(), b = state.b.data<float>()](int64_t index) {
    const int64_t sequence = index / heads, h = index % heads;
    const int64_t key_head = sequence * key_heads + h / (heads / key_heads);
    const int64_t feature = sequence * total + offsets[static_cast<size_t>(h)];
    const HeadFeatures& f = head[static_cast<size_t>(h)];
    Task task{f,
              q.data<float>() + index * tokens * width,
              k.data<float>() + key_head * tokens * width,
              v.data<float>() + key_head * tokens * width,
              tokens,
              {log_max + feature, a + feature, b + feature * width, f.count, width},
              to + (sequence * tokens * heads + h) * width,
              heads * width};
    attend(task, chunk);
  };
  // A token's work on a small model is less than waking the other cores.
  constexpr int64_t kWorthThreads = int64_t{1} << 18;
  if (tokens * batch * total * width >= kWorthThreads) {
    parallel_for(batch * heads, attend_head);
  } else {
    for (int64_t i = 0; i < batch * heads; ++i) attend_head(i);
  }
  return out;
}

Tensor linear_attention(const Tensor& q, const Tensor& k, const Tensor& v, const Features& features,
                        LinearAttentionState* state, int64_t chunk, Tensor*) {
  if (state != nullptr) return attend_all(q, k, v, features, *state, chunk);
  LinearAttentionState fresh = new_linear_attention_state(q.size(0), features);
  return attend_all(q, k, v, features, fresh, chunk);
}

Tensor linear_attention_step(const Tensor& q, const Tensor& k, const Tensor& v,
                             const Features& features, LinearAttentionState& state) {
  return attend_all(q, k, v, features, state, 1);
}

}  // namespace

const LinearAttentionBackend kLinearAttention = {linear_attention, linear_attention_step,
                                                 linear_attention_backward};

}  // namespace dofla::cpu
