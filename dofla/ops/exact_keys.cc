#include "dofla/ops/exact_keys.h"

#include <algorithm>

namespace dofla {
namespace {

const ExactKeysBackend& exact_keys_backend(const Tensor& x) {
  return x.device().is_cuda() ? cuda::kExactKeys : cpu::kExactKeys;
}

void require_inputs(const Tensor& q, const Tensor& k, const std::vector<HeadCache>& caches) {
  require(q.rank() == 4 && k.rank() == 4 && q.size(0) == k.size(0) && q.size(3) == k.size(3) &&
              k.size(1) > 0 && q.size(1) % k.size(1) == 0 && q.size(2) <= k.size(2) &&
              q.dtype() == k.dtype() && q.device() == k.device(),
          "exact keys: queries {} do not go with keys {}", to_string(q.shape()),
          to_string(k.shape()));
  const int64_t keys = std::ranges::max_element(caches, {}, &HeadCache::keys)->keys;
  require(k.size(2) == keys, "exact keys: {} keys, the caches and the new tokens have {}",
          k.size(2), keys);
}

std::vector<HeadCache> caches_of(const Tensor& q, const Tensor& k, const ExactKeys& exact,
                                 int64_t past) {
  require_valid(exact);
  require(q.rank() == 4 && k.rank() == 4, "exact keys: queries {} and keys {}",
          to_string(q.shape()), to_string(k.shape()));
  std::vector<HeadCache> caches = head_caches(exact, k.size(1), past, q.size(2));
  require_inputs(q, k, caches);
  return caches;
}

// A window: the oldest leave, whatever the queries are.
Evictions evict_oldest(const std::vector<HeadCache>& caches, const Tensor& k,
                       const ExactKeys& exact) {
  Evictions one = new_evictions(caches, 1, exact.block, {});
  const int64_t row = one.order.size(2), batch = k.size(0);
  for (size_t h = 0; h < caches.size(); ++h) {
    const HeadCache& cache = caches[h];
    const int64_t sinks = std::min(exact.sinks, cache.keys);
    int32_t* order = one.order.data<int32_t>() + static_cast<int64_t>(h) * row;
    for (int64_t j = 0; j < row; ++j)
      order[j] = j < cache.times * exact.block ? static_cast<int32_t>(sinks + j) : -1;
    int32_t* held = one.held.data<int32_t>() + cache.first;
    std::fill_n(held, cache.limit, -1);
    const auto offset = static_cast<int32_t>(static_cast<int64_t>(h) * k.size(2));
    for (int64_t j = 0; j < cache.keys; ++j)
      if (j < sinks || j >= sinks + cache.times * exact.block)
        *held++ = offset + static_cast<int32_t>(j);
  }
  list_evictions(caches, exact.block, one);
  const auto for_all = [&](const Tensor& x) { return x.to(k.device()).repeat(batch); };
  return {for_all(one.order), for_all(one.leaves), for_all(one.kept), for_all(one.held),
          Tensor::zeros({batch, one.score.size(1)}, DType::kF32, k.device())};
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
  for (const int64_t keys : exact.head_keys) {
    require_valid(exact.with_keys(keys));
    require((exact.keys - keys) % exact.block == 0,
            "exact keys: heads with {} and {} keys: expected numbers that differ by a multiple of "
            "the {} that leave together",
            keys, exact.keys, exact.block);
  }
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

std::vector<HeadCache> head_caches(const ExactKeys& exact, int64_t key_heads, int64_t past,
                                   int64_t tokens) {
  require(exact.head_keys.empty() || std::ssize(exact.head_keys) == key_heads,
          "exact keys: of {} key heads, the layer has {}", exact.head_keys.size(), key_heads);
  require(past >= 0 && tokens >= 0, "exact keys: {} tokens after {}", tokens, past);
  std::vector<HeadCache> caches;
  int64_t kept = 0, places = 0;
  for (int64_t h = 0; h < key_heads; ++h) {
    const ExactKeys own = exact.of_head(h);
    const int64_t before = keys_held(own, past), keys = before + tokens;
    const HeadCache& cache = caches.emplace_back(
        HeadCache{own.keys, before, keys, times_evicted(own, keys), kept, places});
    kept += cache.rounds() * (own.keys - exact.block);
    places += own.keys;
  }
  return caches;
}

Evictions new_evictions(const std::vector<HeadCache>& caches, int64_t batch, int64_t block,
                        const Device& device) {
  const auto heads = std::ssize(caches);
  const HeadCache& last = caches.back();
  const int64_t times = std::ranges::max_element(caches, {}, &HeadCache::times)->times;
  const int64_t kept = last.first_kept + last.rounds() * (last.limit - block);
  const int64_t keys = std::ranges::max_element(caches, {}, &HeadCache::keys)->keys;
  const int64_t places = last.first + last.limit;
  return {Tensor({batch, heads, times * block}, DType::kI32, device),
          Tensor({batch, heads, keys}, DType::kI32, device),
          Tensor({batch, kept}, DType::kI32, device),
          Tensor({batch, 1, places}, DType::kI32, device),
          Tensor({batch, places}, DType::kF32, device)};
}

void list_evictions(const std::vector<HeadCache>& caches, int64_t block, Evictions& evictions) {
  const int64_t row = evictions.order.size(2), keys = evictions.leaves.size(2);
  const auto heads = std::ssize(caches);
  std::fill_n(evictions.leaves.data<int32_t>(), evictions.leaves.count(), kStays);
  for (int64_t head = 0; head < evictions.order.size(0) * heads; ++head) {
    const HeadCache& cache = caches[static_cast<size_t>(head % heads)];
    const int32_t* order = evictions.order.data<int32_t>() + head * row;
    int32_t* leaves = evictions.leaves.data<int32_t>() + head * keys;
    for (int64_t i = 0; i < cache.times * block; ++i)
      leaves[order[i]] = static_cast<int32_t>(i / block);
    int32_t* kept =
        evictions.kept.data<int32_t>() + head / heads * evictions.kept.size(1) + cache.first_kept;
    std::vector<int32_t> held(static_cast<size_t>(std::min(cache.limit, cache.keys)));
    std::iota(held.begin(), held.end(), 0);
    for (int64_t n = 0; n < cache.times; ++n) {
      std::erase_if(held, [&](int32_t key) { return leaves[key] == n; });
      if (n * block % kTokensTogether == 0) kept = std::ranges::copy(held, kept).out;
      const int64_t come = cache.limit + n * block;
      for (int64_t key = come; key < std::min(come + block, cache.keys); ++key)
        held.push_back(static_cast<int32_t>(key));
    }
  }
}

Evictions evict_keys(const Tensor& q, const Tensor& k, const ExactKeys& exact, const Tensor& score,
                     int64_t past) {
  const std::vector<HeadCache> caches = caches_of(q, k, exact, past);
  if (score.defined() || past > 0)
    require_shape(score, {k.size(0), exact.total_keys(k.size(1))},
                  "exact keys: scores from before");
  if (exact.policy == KeyPolicy::kRecent) return evict_oldest(caches, k, exact);
  return exact_keys_backend(q).evict(q, k, exact, caches, score);
}

Tensor exact_attention(const Tensor& q, const Tensor& k, const Tensor& v, const ExactKeys& exact,
                       const Evictions& evictions, Tensor* log_sum, int64_t past) {
  const std::vector<HeadCache> caches = caches_of(q, k, exact, past);
  require_shape(v, k.shape(), "exact keys: v");
  return exact_keys_backend(q).forward(q, k, v, exact, caches, evictions, log_sum);
}

ExactAttentionGradients exact_attention_backward(const Tensor& q, const Tensor& k, const Tensor& v,
                                                 const ExactKeys& exact, const Evictions& evictions,
                                                 const Tensor& grad_out, const AttentionTape& tape,
                                                 const GradientBuffers& buffers) {
  const std::vector<HeadCache> caches = caches_of(q, k, exact, 0);
  require_shape(v, k.shape(), "exact keys: v");
  require_shape(grad_out, {q.size(0), q.size(2), q.size(1), q.size(3)}, "exact keys: grad_out");
  require(tape.log_sum.defined(), "exact keys: a backward needs the forward's tape");
  require_tape(tape, q);
  return exact_keys_backend(q).backward(q, k, v, exact, caches, evictions, grad_out, tape, buffers);
}

}  // namespace dofla
