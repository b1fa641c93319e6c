#include "dofla/ops/exact_keys.h"

#include <algorithm>

namespace dofla {
namespace {

const ExactKeysBackend& on_device(const Tensor& x) {
  return x.device().is_cuda() ? cuda::kExactKeys : cpu::kExactKeys;
}

void require_inputs(const Tensor& q, const Tensor& k, const ExactKeys& exact) {
  require_valid(exact);
  require(exact.head_keys.empty(), "exact keys: heads that hold different numbers of keys");
  require(q.rank() == 4 && k.rank() == 4 && q.size(0) == k.size(0) && q.size(3) == k.size(3) &&
              k.size(1) > 0 && q.size(1) % k.size(1) == 0 && q.size(2) <= k.size(2) &&
              q.dtype() == k.dtype() && q.device() == k.device(),
          "exact keys: queries {} do not go with keys {}", to_string(q.shape()),
          to_string(k.shape()));
  require(k.size(2) - q.size(2) <= exact.keys, "exact keys: {} keys from before, a cache holds {}",
          k.size(2) - q.size(2), exact.keys);
}

// A window: the oldest leave, whatever the queries are.
Evictions evict_oldest(const Tensor& k, const ExactKeys& exact) {
  const int64_t keys = k.size(2), times = times_evicted(exact, keys);
  const int64_t held = keys - times * exact.block, sinks = std::min(exact.sinks, keys);
  const auto indices = [](int64_t count) {
    return Tensor({1, std::max<int64_t>(count, 0)}, DType::kI32);
  };
  Tensor order = indices(times * exact.block), kept = indices(times * (exact.keys - exact.block)),
         rest = indices(held);
  // Those that are held when `left` keys have left and `come` have come.
  const auto write_held = [&](int64_t left, int64_t come, int32_t* to) {
    for (int64_t j = 0; j < sinks; ++j) *to++ = static_cast<int32_t>(j);
    for (int64_t j = sinks + left; j < come; ++j) *to++ = static_cast<int32_t>(j);
  };
  for (int64_t j = 0; j < order.count(); ++j)
    order.data<int32_t>()[j] = static_cast<int32_t>(sinks + j);
  for (int64_t n = 0; n < times; ++n)
    write_held((n + 1) * exact.block, exact.keys + n * exact.block,
               kept.data<int32_t>() + n * (exact.keys - exact.block));
  write_held(times * exact.block, keys, rest.data<int32_t>());
  const int64_t batch = k.size(0), heads = k.size(1);
  const auto for_all = [&](const Tensor& one, Shape shape) {
    return one.to(k.device()).repeat(batch * heads).reshape(std::move(shape));
  };
  return {for_all(order, {batch, heads, times * exact.block}),
          for_all(kept, {batch, heads, times, exact.keys - exact.block}),
          for_all(rest, {batch, heads, held}),
          Tensor::zeros({batch, heads, held}, DType::kF32, k.device())};
}

}  // namespace

void require_valid(const ExactKeys& exact) {
  require(exact.sinks >= 0 && exact.recent >= 0,
          "exact keys: expected at least 0 sinks and 0 recent keys, found {} and {}", exact.sinks,
          exact.recent);
  require(exact.block >= 1 && 64 % exact.block == 0,
          "exact keys: expected a block that divides 64, found {}", exact.block);
  require(
      exact.keys >= least_keys(exact),
      "exact keys: {} are too few: {} sinks and the {} newest stay when {} leave: give at least "
      "{}",
      exact.keys, exact.sinks, exact.newest(), exact.block, least_keys(exact));
  require(exact.decay > 0 && exact.decay < 1,
          "exact keys: expected a decay between 0 and 1, found {}", exact.decay);
  if (exact.head_keys.empty()) return;
  for (const int64_t keys : exact.head_keys) require_valid(exact.with_keys(keys));
  require(exact.keys == *std::ranges::max_element(exact.head_keys),
          "exact keys: {} are not the most of any head", exact.keys);
}

float first_score(const ExactKeys& exact, int64_t group) {
  if (exact.policy == KeyPolicy::kRecent) return 0;
  constexpr double kShare = 0.5;              // of the average
  const double seen = 1 / (1 - exact.decay);  // queries, each counted with its decay
  const double average = static_cast<double>(group) / static_cast<double>(exact.keys);
  return static_cast<float>(kShare * average * seen);
}

int64_t times_evicted(const ExactKeys& exact, int64_t keys) {
  return keys <= exact.keys ? 0 : (keys - exact.keys + exact.block - 1) / exact.block;
}

int64_t keys_held(const ExactKeys& exact, int64_t tokens) {
  return tokens - times_evicted(exact, tokens) * exact.block;
}

Evictions evict_keys(const Tensor& q, const Tensor& k, const ExactKeys& exact,
                     const Tensor& score) {
  require_inputs(q, k, exact);
  const int64_t before = k.size(2) - q.size(2);
  if (score.defined() || before > 0)
    require_shape(score, {k.size(0), k.size(1), before}, "exact keys: scores from before");
  if (exact.policy == KeyPolicy::kRecent) return evict_oldest(k, exact);
  return on_device(q).evict(q, k, exact, score);
}

Tensor exact_attention(const Tensor& q, const Tensor& k, const Tensor& v, const ExactKeys& exact,
                       const Evictions& evictions, Tensor* log_sum) {
  require_inputs(q, k, exact);
  require_shape(v, k.shape(), "exact keys: v");
  return on_device(q).forward(q, k, v, exact, evictions, log_sum);
}

ExactAttentionGradients exact_attention_backward(const Tensor& q, const Tensor& k, const Tensor& v,
                                                 const ExactKeys& exact, const Evictions& evictions,
                                                 const Tensor& grad_out, const AttentionTape& tape,
                                                 const GradientBuffers& buffers) {
  require_inputs(q, k, exact);
  require_shape(v, k.shape(), "exact keys: v");
  require_shape(grad_out, {q.size(0), q.size(2), q.size(1), q.size(3)}, "exact keys: grad_out");
  require(q.size(2) == k.size(2), "exact keys: a backward needs whole sequences");
  require(tape.log_sum.defined(), "exact keys: a backward needs the forward's tape");
  require_tape(tape, q);
  return on_device(q).backward(q, k, v, exact, evictions, grad_out, tape, buffers);
}

}  // namespace dofla
