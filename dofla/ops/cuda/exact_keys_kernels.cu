#include <algorithm>
#include <cmath>

#include "dofla/ops/cuda/exact_keys_choice.cuh"
#include "dofla/ops/cuda/exact_keys_kernels.h"
#include "dofla/ops/cuda/launch.cuh"

namespace dofla::cuda {
namespace {

constexpr int64_t kMostShared =
    224 * 1024;  // a block has 227 KiB, some of them for what is declared

template <class T, int kWidth, int kHeads>
__global__ void __launch_bounds__(32 * kMostChooserWarps)
    evict_keys(const __grid_constant__ EvictArguments a) {
  using Cache = Chooser<T, kWidth, kHeads>;
  __shared__ float powers[kTokens + 1];
  __shared__ typename Cache::Parts parts;
  const int64_t head = int64_t{blockIdx.y} * gridDim.x + blockIdx.x;
  const KeyCache& own = a.cache[blockIdx.x];
  const int thread = threadIdx.x, threads = blockDim.x, limit = own.limit;
  const int keys = own.before + a.tokens, slot_count = slots_for(limit, a.block);
  T* free_space = reinterpret_cast<T*>(shared_memory());
  T* slots = a.slots != nullptr ? static_cast<T*>(a.slots) + head * a.most_slots * Cache::kStride
                                : free_space;
  if (a.slots == nullptr) free_space += a.most_slots * Cache::kStride;
  const int query_elements = a.units * Cache::kColumns * Cache::kStride;
  const auto queries = [&](int buffer) {
    return typename Cache::Rows{free_space + buffer * query_elements};
  };
  const EvictLists s = lists_at(a, free_space + 2 * query_elements);
  Cache cache = {a,      own,   s, {slots}, slot_count, candidates_of(limit, a.sinks, a.recent),
                 powers, parts, 0};

  const float* before =
      a.before == nullptr ? nullptr : a.before + blockIdx.y * a.places + own.first;
  for (int slot = thread; slot < slot_count; slot += threads) {
    s.score[slot] = slot < own.before ? before[slot] : 0.0f;
    s.index[slot] = kNoKey;
  }
  for (int p = thread; p < limit; p += threads) s.by_age[p] = p;
  for (int i = thread; i < a.block; i += threads) s.spare[i] = limit + i;
  begin_leaving(a.block, s.leaving, threads);
  if (thread <= kTokens) powers[thread] = powf(a.decay, static_cast<float>(thread));
  for (int i = own.times * a.block + thread; i < a.order_row; i += threads)
    a.to.order[head * a.order_row + i] = -1;
  __syncthreads();
  cache.load_keys(min(limit, keys), s.by_age);
  cache.load_queries(own.before, 0, queries(0));
  commit_copies();

  int token = own.before, buffer = 0;
  for (int n = 0; n <= own.times; ++n) {
    const int end = min(keys, limit + n * a.block), next_end = min(keys, end + a.block);
    while (token < end) {
      const int count = min(kTokens, end - token), together = a.units * kHeads;
      for (int first_head = 0; first_head < a.group; first_head += together) {
        wait_for_copies<0>();
        __syncthreads();
        if (n < own.times) cache.load_keys(next_end, s.spare_at(n));
        if (first_head + together < a.group)
          cache.load_queries(token, first_head + together, queries(buffer ^ 1));
        else if (token + count < keys)
          cache.load_queries(token + count, 0, queries(buffer ^ 1));
        commit_copies();
        cache.attend(token, count, first_head, queries(buffer));
        buffer ^= 1;
      }
      token += count;
    }
    if (n == own.times) break;
    cache.load_keys(next_end, s.spare_at(n));  // of a cache that was full from the beginning
    commit_copies();
    __syncthreads();
    cache.evict(n);
  }
  __syncthreads();
  const int held = keys - own.times * a.block;
  const int64_t place = int64_t{blockIdx.y} * a.places + own.first;
  for (int p = thread; p < limit; p += threads) {
    const int slot = s.by_age_at(own.times)[p], key = s.index[slot];
    if (p < held) a.to.leaves[head * a.key_rows + key] = kStays;
    a.to.held[place + p] = p < held ? static_cast<int>(blockIdx.x) * a.key_rows + key : -1;
    a.to.score[place + p] = p < held ? s.score[slot] : 0.0f;
  }
}

int stride_of(int64_t width) {
  return (width <= 32 ? 32 : width <= 64 ? 64 : 128) + 8;
}

int64_t bytes_of(Element element) {
  return element == Element::kF32 ? 4 : 2;
}

int heads_of_warp(const ExactKeysShape& s) {
  return s.heads == s.key_heads ? 1 : 2;
}

// Sizes of what a block has.
EvictArguments sizes_of(const ExactKeysShape& s) {
  EvictArguments a = {};
  a.group = static_cast<int>(s.heads / s.key_heads);
  a.units = std::min(chunks(a.group, heads_of_warp(s)), kMostChooserWarps);
  a.block = static_cast<int>(s.block);
  a.most_slots = slots_for(static_cast<int>(s.most_held()), a.block);
  return a;
}

// As many as have a tile of slots of their own; more than eight only wait for each other longer.
int warps_of(const EvictArguments& a) {
  return a.units * std::clamp(a.most_slots / kSlotTile, 1, kMostChooserWarps / a.units);
}

int64_t slot_bytes(const ExactKeysShape& s, const EvictArguments& a) {
  return int64_t{a.most_slots} * stride_of(s.width) * bytes_of(s.element);
}

int64_t other_bytes(const ExactKeysShape& s, const EvictArguments& a) {
  const int64_t queries = int64_t{2} * a.units * heads_of_warp(s) * kTokens;
  // The right operand of a product is 16 rows high.
  const int64_t read_beyond = heads_of_warp(s) == 1 ? kTokens : 0;
  return (queries + read_beyond) * stride_of(s.width) * bytes_of(s.element) + list_words(a) * 4;
}

bool slots_in_shared(const ExactKeysShape& s, const EvictArguments& a) {
  return slot_bytes(s, a) + other_bytes(s, a) <= kMostShared;
}

template <class T>
cudaError_t launch_chooser(const ExactKeysShape& s, const EvictArguments& a, cudaStream_t stream) {
  const int64_t shared = other_bytes(s, a) + (a.slots == nullptr ? slot_bytes(s, a) : 0);
  return with_width(s.width, [&](auto width) {
    constexpr int kWidth = decltype(width)::value;
    return launch(heads_of_warp(s) == 1 ? evict_keys<T, kWidth, 1> : evict_keys<T, kWidth, 2>,
                  dim3(static_cast<unsigned>(s.key_heads), static_cast<unsigned>(s.batch)),
                  32 * warps_of(a), static_cast<size_t>(shared), stream, a);
  });
}

}  // namespace

bool eviction_fits(const ExactKeysShape& s) {
  const EvictArguments a = sizes_of(s);
  return s.element == Element::kF32 ? other_bytes(s, a) <= kMostShared : slots_in_shared(s, a);
}

int64_t eviction_workspace_bytes(const ExactKeysShape& s) {
  const EvictArguments a = sizes_of(s);
  return slots_in_shared(s, a) ? 0 : s.batch * s.key_heads * slot_bytes(s, a);
}

cudaError_t launch_evict_keys(const ExactKeysShape& s, const EvictionRule& rule, const HeadRows& q,
                              const HeadRows& k, const float* score, const EvictionsOut& evictions,
                              void* workspace, cudaStream_t stream) {
  if (!valid(s) || !eviction_fits(s)) return cudaErrorInvalidValue;
  EvictArguments a = sizes_of(s);
  a.q = q, a.k = k, a.before = score, a.to = evictions;
  a.slots = slots_in_shared(s, a) ? nullptr : workspace;
  for (int64_t h = 0; h < s.key_heads; ++h) a.cache[h] = s.cache[h];
  a.kept_row = s.kept(), a.places = static_cast<int>(s.places());
  a.times_together = static_cast<int>(kTokensTogether / s.block);
  a.order_row = static_cast<int>(s.most_times() * s.block), a.key_rows = static_cast<int>(s.keys);
  a.tokens = static_cast<int>(s.queries), a.width = static_cast<int>(s.width);
  a.sinks = static_cast<int>(rule.sinks), a.recent = static_cast<int>(rule.recent);
  a.decay = static_cast<float>(rule.decay);
  a.log2_scale = static_cast<float>(1.4426950408889634 / std::sqrt(static_cast<double>(s.width)));
  a.packed_q = in_packs(q, s.element, s.width);
  a.packed_k = in_packs(k, s.element, s.width);
  return s.element == Element::kF32 ? launch_chooser<float>(s, a, stream)
                                    : launch_chooser<__nv_bfloat16>(s, a, stream);
}

}  // namespace dofla::cuda
