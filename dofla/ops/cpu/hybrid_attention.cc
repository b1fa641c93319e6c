#include "dofla/ops/hybrid_attention.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "dofla/core/parallel.h"
#include "dofla/ops/cpu/key_segments.h"
#include "dofla/ops/cpu/linear_attention_chunk.h"
#include "dofla/ops/cpu/positive_features.h"
#include "dofla/ops/cpu/vector_rows.h"

namespace dofla::cpu {
namespace {

// Calls row(sequence, head, r, query) for the rows r that see keys which have left. `first` is the
// first such query of every key head.
template <class Row>
void for_left_rows(const Tensor& q, const std::vector<int64_t>& first, const Row& row) {
  const int64_t heads = q.size(1), group = heads / std::ssize(first);
  const int64_t rows = q.size(2) - std::ranges::min(first);
  parallel_rows(q.size(0) * heads * rows, [&](int64_t i) {
    const int64_t head = i / rows % heads, r = i % rows;
    const int64_t query = first[static_cast<size_t>(head / group)] + r;
    if (query < q.size(2)) row(i / rows / heads, head, r, query);
  });
}

// |x|²/(2√D)
float half_norm(const float* x, int64_t width) {
  return 0.5f * dot(x, x, width) / std::sqrt(static_cast<float>(width));
}

void merge(const Tensor& q, const Tensor& left_out, const Tensor& left_log_sum,
           const std::vector<int64_t>& first, Tensor& out, Tensor& log_sum) {
  const int64_t heads = q.size(1), tokens = q.size(2), width = q.size(3);
  const int64_t left_rows = left_out.size(1);
  float* const to = out.data<float>();
  float* const logs = log_sum.data<float>();
  for_left_rows(q, first, [&](int64_t b, int64_t h, int64_t r, int64_t token) {
    const int64_t query = (b * heads + h) * tokens + token;
    const float left = left_log_sum.data<float>()[(b * heads + h) * left_rows + r] -
                       half_norm(q.data<float>() + query * width, width);
    float& log = logs[query];
    const float top = std::max(left, log);
    const float both = top + std::log(std::exp(left - top) + std::exp(log - top));
    float* row = to + ((b * tokens + token) * heads + h) * width;
    scale_row(std::exp(log - both), width, row);
    add_scaled(left_out.data<float>() + ((b * left_rows + r) * heads + h) * width,
               std::exp(left - both), width, row);
    log = both;
  });
}

void merge_backward(const Tensor& q, const Tensor& left_out, const Tensor& out,
                    const Tensor& log_sum, const Tensor& grad_out,
                    const std::vector<int64_t>& first, Tensor& left_log_sum, Tensor& grad_q) {
  const int64_t heads = q.size(1), tokens = q.size(2), width = q.size(3);
  const int64_t left_rows = left_out.size(1);
  const float root = std::sqrt(static_cast<float>(width));
  float* const logs = left_log_sum.data<float>();
  auto* const to = static_cast<float*>(grad_q.mutable_first());  // may be a view
  for_left_rows(q, first, [&](int64_t b, int64_t h, int64_t r, int64_t i) {
    const int64_t query = (b * heads + h) * tokens + i;
    const int64_t token = ((b * tokens + i) * heads + h) * width;
    const float* x = q.data<float>() + query * width;
    const float* g = grad_out.data<float>() + token;
    const float norm = half_norm(x, width), both = log_sum.data<float>()[query];
    float& log = logs[(b * heads + h) * left_rows + r];
    const float change =
        dot(g, left_out.data<float>() + ((b * left_rows + r) * heads + h) * width, width) -
        dot(g, out.data<float>() + token, width);
    add_scaled(x, -std::exp(log - norm - both) * change / root, width,
               to + b * grad_q.step(0) + h * grad_q.step(1) + i * grad_q.step(2));
    log = both + norm;
  });
  const int64_t group = heads / std::ssize(first);
  for (int64_t head = 0; head < q.size(0) * heads; ++head) {
    const int64_t used = tokens - first[static_cast<size_t>(head % heads / group)];
    std::fill(logs + head * left_rows + std::max<int64_t>(used, 0), logs + (head + 1) * left_rows,
              0.0f);
  }
}

// One key head of one sequence.
struct Place {
  float *k, *v;  // [K, D]
  float* score;  // [K]
  int64_t held, width;

  // Keys and values at these places, one after another; the others move together.
  void take_out(const std::vector<int64_t>& places, std::vector<float>& keys,
                std::vector<float>& values) {
    const auto move = [&](float* rows, int64_t size, std::vector<float>* out) {
      auto leaving = places.begin();
      int64_t to = 0;
      for (int64_t j = 0; j < held; ++j) {
        if (leaving != places.end() && *leaving == j) {
          ++leaving;
          if (out != nullptr) out->insert(out->end(), rows + j * size, rows + (j + 1) * size);
          continue;
        }
        std::copy_n(rows + j * size, size, rows + to++ * size);
      }
    };
    move(k, width, &keys);
    move(v, width, &values);
    move(score, 1, nullptr);
    held -= static_cast<int64_t>(places.size());
  }

  void append(const float* key, const float* value, float first) {
    std::copy_n(key, width, k + held * width);
    std::copy_n(value, width, v + held * width);
    score[held++] = first;
  }
};

void absorb(const SideFeatures& features, const std::vector<float>& keys,
            const std::vector<float>& values, HeadState& state) {
  const auto rows = static_cast<int64_t>(keys.size()) / state.width;
  std::vector<float> log_k(static_cast<size_t>(rows * state.count));
  log_features(features, keys.data(), rows, log_k.data());
  KeyFactors factors(rows, state.count);
  factor_chunk_keys(state, log_k.data(), rows, factors);
  decay_state(factors, state);
  absorb_chunk(factors, values.data(), rows, state);
}

// One query against the held keys and, where there is one, the state. `attended` receives the
// attention to held keys among themselves.
void attend(const Place& cache, const float* q, const SideFeatures* features,
            const HeadState* state, std::vector<float>& attended, float* out) {
  const int64_t width = cache.width;
  attended.assign(static_cast<size_t>(cache.held), 0.0f);
  add_matrix_vector(cache.k, q, 1 / std::sqrt(static_cast<float>(width)), cache.held, width,
                    attended.data());
  const float top = row_max(attended.data(), cache.held);
  const float total = exp_and_sum(top, cache.held, attended.data());
  std::fill_n(out, width, 0.0f);
  add_weighted_rows(cache.v, attended.data(), cache.held, width, out);
  scale_row(1 / total, cache.held, attended.data());
  if (state == nullptr) return scale_row(1 / total, width, out);

  std::vector<float> weight(static_cast<size_t>(state->count));
  log_features(*features, q, 1, weight.data());
  add_scaled(state->log_max, 1.0f, state->count, weight.data());
  const float shift = row_max(weight.data(), state->count);
  exp_shifted(weight.data(), -shift, state->count, weight.data());
  const float larger = std::max(top, shift);
  const float of_held = std::exp(top - larger), of_left = std::exp(shift - larger);
  scale_row(of_held, width, out);
  scale_row(of_left, state->count, weight.data());
  add_weighted_rows(state->b, weight.data(), state->count, width, out);
  scale_row(1 / (of_held * total + dot(weight.data(), state->a, state->count)), width, out);
}

Tensor step(const Tensor& q, const Tensor& k, const Tensor& v, const Features& features,
            const ExactKeys& exact, HybridAttentionState& state, const Tensor& past) {
  const int64_t batch = q.size(0), heads = q.size(1), width = q.size(3), key_heads = k.size(1);
  const int64_t group = heads / key_heads, total = features.empty() ? 0 : features.total();
  const int64_t states = features.empty() ? 0 : features.heads() / key_heads;  // of a key head
  const std::vector<HeadFeatures> all =
      features.empty() ? std::vector<HeadFeatures>() : head_features(features);
  const std::vector<int64_t> offsets =
      features.empty() ? std::vector<int64_t>() : features.offsets();
  const std::vector<HeadCache> head_places = head_caches(exact, key_heads, 0, 0);
  const int64_t places = state.score.size(1);
  Tensor out({batch, 1, heads, width});
  float* const to = out.data<float>();
  float* const caches[] = {state.k.data<float>(), state.v.data<float>(), state.score.data<float>()};
  const auto attend_head = [&](int64_t index) {
    const int64_t b = index / key_heads, g = index % key_heads, seen = past.data<int64_t>()[b];
    const ExactKeys kind = exact.of_head(g);
    const int64_t place = b * places + head_places[static_cast<size_t>(g)].first;
    Place cache = {caches[0] + place * width, caches[1] + place * width, caches[2] + place,
                   keys_held(kind, seen), width};
    const auto state_of = [&](int64_t s) {
      const auto head = static_cast<size_t>(g * states + s);
      const int64_t at = b * total + offsets[head];
      return HeadState{state.left.log_max.data<float>() + at, state.left.a.data<float>() + at,
                       state.left.b.data<float>() + at * width, features.counts[head], width};
    };
    if (cache.held == kind.keys) {
      std::vector<float> keys, values;
      cache.take_out(least_attended(kind, cache.score, cache.held), keys, values);
      for (int64_t s = 0; s < states; ++s) {
        HeadState own = state_of(s);
        absorb(all[static_cast<size_t>(g * group + s * (group / states))].key, keys, values, own);
      }
    }
    cache.append(k.data<float>() + index * width, v.data<float>() + index * width,
                 first_score(kind, group));
    const bool any_left = states > 0 && times_evicted(kind, seen + 1) > 0;
    std::vector<float> attended, sum(static_cast<size_t>(cache.held), 0.0f);
    for (int64_t i = 0; i < group; ++i) {
      const int64_t head = g * group + i;
      const HeadState own = any_left ? state_of(i / (group / states)) : HeadState{};
      attend(cache, q.data<float>() + (b * heads + head) * width,
             any_left ? &all[static_cast<size_t>(head)].query : nullptr, any_left ? &own : nullptr,
             attended, to + (b * heads + head) * width);
      add_scaled(attended.data(), 1.0f, cache.held, sum.data());
    }
    if (exact.policy == KeyPolicy::kRecent) return;
    scale_row(static_cast<float>(exact.decay), cache.held, cache.score);
    add_scaled(sum.data(), 1.0f, cache.held, cache.score);
  };
  // A token's work on a small model is less than waking the other cores.
  constexpr int64_t kWorthThreads = int64_t{1} << 18;
  if (batch * heads * width * ((places + total) / key_heads) >= kWorthThreads)
    parallel_for(batch * key_heads, attend_head);
  else
    for (int64_t i = 0; i < batch * key_heads; ++i) attend_head(i);
  return out;
}

}  // namespace

const HybridAttentionBackend kHybridAttention = {merge, merge_backward, step};

}  // namespace dofla::cpu
