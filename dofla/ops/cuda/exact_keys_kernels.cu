#include <algorithm>
#include <cmath>

#include "dofla/ops/cuda/exact_keys_choice.cuh"
#include "dofla/ops/cuda/exact_keys_kernels.h"
#include "dofla/ops/cuda/launch.cuh"

namespace dofla::cuda {
namespace {

constexpr int64_t kMostShared =
    225 * 1024;  // a block has 227 KiB, some of them for what is declared

template <class T, int kWidth>
__global__ void __launch_bounds__(kChooserThreads, 1)
    evict_keys(const __grid_constant__ EvictArguments a) {
  using Cache = Chooser<T, kWidth>;
  __shared__ float powers[kTile + 1];
  __shared__ float2 parts[kChooserWarps][kTile];
  const int64_t head = int64_t{blockIdx.y} * gridDim.x + blockIdx.x;
  const int rows = a.slot_count, thread = threadIdx.x;
  T* free_space = reinterpret_cast<T*>(shared_memory());
  T* slots =
      a.slots != nullptr ? static_cast<T*>(a.slots) + head * rows * Cache::kStride : free_space;
  if (a.slots == nullptr) free_space += rows * Cache::kStride;
  T* queries = free_space;
  const EvictLists s = lists_at(a, queries + a.heads * kTile * Cache::kStride);
  Cache cache = {a, s, {slots}, {queries}, powers, parts, 0};

  for (int slot = thread; slot < rows; slot += kChooserThreads) {
    s.score[slot] = slot < a.past ? a.before[head * a.past + slot] : 0.0f;
    s.index[slot] = kNoKey;
  }
  for (int p = thread; p < a.limit; p += kChooserThreads) s.by_age[p] = p;
  for (int i = thread; i < a.block; i += kChooserThreads) s.spare[i] = a.limit + i;
  if (thread <= kTile) powers[thread] = powf(a.decay, static_cast<float>(thread));
  __syncthreads();
  cache.load_keys(min(a.limit, a.keys), s.by_age);
  cache.load_queries(a.past, 0);
  commit_copies();

  int token = a.past;
  for (int n = 0; n <= a.times; ++n) {
    const int end = min(a.keys, a.limit + n * a.block), next_end = min(a.keys, end + a.block);
    for (; token < end; token = min(end, token + kTile)) {
      const int count = min(kTile, end - token);
      for (int first_head = 0; first_head < a.group; first_head += a.heads) {
        wait_for_copies<0>();
        __syncthreads();
        cache.attend(token, count, first_head, [&] {
          if (n < a.times) cache.load_keys(next_end, s.spare);
          if (first_head + a.heads < a.group)
            cache.load_queries(token, first_head + a.heads);
          else if (token + count < a.keys)
            cache.load_queries(token + count, 0);
          commit_copies();
        });
      }
    }
    if (n == a.times) break;
    cache.load_keys(next_end, s.spare);  // of a cache that was full from the beginning
    commit_copies();
    cache.evict(n);
  }
  __syncthreads();
  const int held = a.keys - a.times * a.block;
  for (int p = thread; p < held; p += kChooserThreads) {
    a.to.held[head * held + p] = s.index[s.by_age[p]];
    a.to.score[head * held + p] = s.score[s.by_age[p]];
  }
}

int stride_of(int64_t width) {
  return (width <= 32 ? 32 : width <= 64 ? 64 : 128) + 8;
}

int64_t bytes_of(Element element) {
  return element == Element::kF32 ? 4 : 2;
}

// Sizes of what a block has.
EvictArguments sizes_of(const ExactKeysShape& s) {
  EvictArguments a = {};
  a.group = static_cast<int>(s.heads / s.key_heads);
  a.heads = std::min(a.group, kChooserWarps);
  a.limit = static_cast<int>(s.limit), a.block = static_cast<int>(s.block);
  a.slot_count = (a.limit + a.block + 15) / 16 * 16;
  return a;
}

int64_t slot_bytes(const ExactKeysShape& s, const EvictArguments& a) {
  return int64_t{a.slot_count} * stride_of(s.width) * bytes_of(s.element);
}

int64_t other_bytes(const ExactKeysShape& s, const EvictArguments& a) {
  return int64_t{a.heads} * kTile * stride_of(s.width) * bytes_of(s.element) + list_words(a) * 4;
}

bool slots_in_shared(const ExactKeysShape& s, const EvictArguments& a) {
  return slot_bytes(s, a) + other_bytes(s, a) <= kMostShared;
}

template <class T>
cudaError_t launch_chooser(const ExactKeysShape& s, const EvictArguments& a, cudaStream_t stream) {
  const int64_t shared = other_bytes(s, a) + (a.slots == nullptr ? slot_bytes(s, a) : 0);
  return with_width(s.width, [&](auto width) {
    return launch(evict_keys<T, decltype(width)::value>,
                  dim3(static_cast<unsigned>(s.key_heads), static_cast<unsigned>(s.batch)),
                  kChooserThreads, static_cast<size_t>(shared), stream, a);
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
  if (s.key_heads < 1 || s.heads % s.key_heads != 0 || s.queries > s.keys ||
      s.keys - s.queries > s.limit || !eviction_fits(s))
    return cudaErrorInvalidValue;
  EvictArguments a = sizes_of(s);
  a.q = q, a.k = k, a.before = score, a.to = evictions;
  a.slots = slots_in_shared(s, a) ? nullptr : workspace;
  a.keys = static_cast<int>(s.keys), a.past = static_cast<int>(s.keys - s.queries);
  a.width = static_cast<int>(s.width), a.times = static_cast<int>(s.times);
  a.sinks = static_cast<int>(rule.sinks), a.recent = static_cast<int>(rule.recent);
  a.decay = static_cast<float>(rule.decay), a.first_score = rule.first_score;
  a.log2_scale = static_cast<float>(1.4426950408889634 / std::sqrt(static_cast<double>(s.width)));
  a.packed_q = in_packs(q, s.element, s.width);
  a.packed_k = in_packs(k, s.element, s.width);
  return s.element == Element::kF32 ? launch_chooser<float>(s, a, stream)
                                    : launch_chooser<__nv_bfloat16>(s, a, stream);
}

}  // namespace dofla::cuda
