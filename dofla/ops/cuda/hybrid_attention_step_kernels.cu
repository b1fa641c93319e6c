#include <algorithm>
#include <cmath>

#include "dofla/ops/cuda/feature_parts.cuh"
#include "dofla/ops/cuda/hybrid_attention_kernels.h"
#include "dofla/ops/cuda/hybrid_attention_step.cuh"
#include "dofla/ops/cuda/overlap.cuh"

namespace dofla::cuda {
namespace {

struct BlockTeam {
  static constexpr int kThreads = 256;
  static __device__ void meet() { __syncthreads(); }
};

struct StepArguments {
  HeadRows q, k, v;
  HeadRowsOut out;
  const int64_t* past;
  void *cache_k, *cache_v;
  float* score;
  CachePlaces places;
  FeatureTable features;
  const float *z, *log_alpha;
  const float *u, *norm_weight;  // of untied features, or null
  LinearAttentionSums sums;
  int group, width, total;
  int block, sinks, recent;
  float decay;                    // of scores
  float scale;                    // of q·k
  float inner_scale, norm_scale;  // of log features
  bool has_features, by_score;
  bool packed;        // rows of z, u and b come in float4
  bool packed_cache;  // rows of the cache come in packs
  int pairs, states;  // the most of the query heads that attend together
  int slot_bytes;
};

// Rows in a slot begin in different banks.
template <class T>
__host__ __device__ int bytes_in_slot(int width) {
  return (width + 7) / 8 * 8 * static_cast<int>(sizeof(T)) + 16;
}

template <class T>
__device__ HybridHead<T> head_of_block(const StepArguments& a, int b, int key_head) {
  const int limit = a.places.limit[key_head], head = key_head * a.group;
  const int64_t place = int64_t{b} * a.places.total + a.places.first[key_head], past = a.past[b];
  HybridHead<T> h = {};
  h.keys = static_cast<T*>(a.cache_k) + place * a.width;
  h.values = static_cast<T*>(a.cache_v) + place * a.width;
  h.score = a.score + place;
  h.limit = limit, h.held = keys_after(past, limit, a.block);
  h.block = a.block, h.sinks = a.sinks, h.recent = a.recent;
  h.evicts = true, h.by_score = a.by_score, h.any_left = a.has_features && past >= limit;
  h.first_score = a.places.first_score[key_head], h.decay = a.decay, h.scale = a.scale;
  h.group = a.group, h.width = a.width;
  h.packed = a.packed, h.packed_cache = a.packed_cache;
  h.sharing = a.features.sharing;
  if (!a.has_features) return h;
  const int first = a.features.first_of_state(head);
  const int64_t own = int64_t{b} * a.total + first;
  h.pairs = a.features.first + head;
  h.z = a.z + int64_t{first} * a.width, h.log_alpha = a.log_alpha + first;
  h.directions = a.u == nullptr ? h.z : a.u + int64_t{h.pairs[0]} * a.width;
  h.sums = {a.sums.log_max + own, a.sums.a + own, a.sums.b + own * a.width};
  h.inner_scale = a.inner_scale, h.norm_scale = a.norm_scale;
  h.norm_weight = a.norm_weight == nullptr ? 1 : a.norm_weight[key_head];
  return h;
}

// Rows of `width` elements on their way to a slot, filled up with zeros to packs of eight.
template <class E>
__device__ void load_rows(const E* from, int width, bool packed, int count, unsigned char* to,
                          int bytes) {
  constexpr int kPack = 16 / sizeof(E);
  const int units = (width + 7) / 8 * 8 / (packed ? kPack : 1);
  for (int i = threadIdx.x; i < count * units; i += BlockTeam::kThreads) {
    const int row = i / units, at = i % units * (packed ? kPack : 1);
    const bool inside = at < width;
    const E* source = from + int64_t{row} * width + (inside ? at : 0);
    auto* own = reinterpret_cast<E*>(to + row * bytes) + at;
    if (packed)
      copy_16_bytes(own, source, inside);
    else
      *own = inside ? *source : E(0.0f);
  }
}

template <class Shared>
__device__ void load_slot(const Shared& shared, int first_query, unsigned char* memory) {
  const auto& h = shared.head;
  const HybridSlot& slot = shared.slot;
  const HybridPacking& packing = shared.packing;
  const auto load = [&](int kind, const auto* rows, bool packed) {
    load_rows(rows + int64_t{slot.first[kind]} * h.width, h.width, packed, slot.count[kind],
              memory + slot.offset[kind], packing.bytes[kind]);
  };
  load(HybridRows::kKeys, h.keys, h.packed_cache);
  load(HybridRows::kValues, h.values, h.packed_cache);
  if (h.any_left) {
    const int64_t before = int64_t{h.first_pair(first_query, 0)} * h.width;
    load(HybridRows::kDirections, h.directions + before, h.packed);
    load(HybridRows::kSums, h.sums.b + (h.sharing > 1 ? 0 : before), h.packed);
  }
  commit_copies();
}

// Of the kernels in a chain only this one writes caches and sums: they can be read before its
// inputs are there, but not written.
template <class T, int kWidth>
__global__ void __launch_bounds__(BlockTeam::kThreads, kWidth > 64 ? 2 : 3)
    hybrid_attention_step(const __grid_constant__ StepArguments a) {
  using Step = HybridStep<T, kWidth, kParts<T>, BlockTeam>;
  let_next_start();
  auto& shared = *reinterpret_cast<typename Step::Shared*>(shared_memory());
  unsigned char* memory = shared_memory() + sizeof(shared);
  const HybridHead<T>& h = shared.head;
  const int b = blockIdx.y, key_head = blockIdx.x;
  if (threadIdx.x == 0) {
    shared.head = head_of_block<T>(a, b, key_head);
    shared.lists = HybridLists::from(
        static_cast<int>(sizeof(shared)) + a.slot_bytes,
        {h.limit, h.block, true, min(kQueriesTogether, h.group), a.pairs, a.states, Step::kWarps});
  }
  __syncthreads();
  const HybridEviction<T, kWidth, BlockTeam> eviction = {h, shared.lists};
  eviction.load_scores();
  const bool full = h.full();
#pragma unroll 1
  for (int first = 0; first < h.group; first += kQueriesTogether) {
    Step step(shared, first);
    const bool last = first + step.queries == h.group;
    if (first > 0) __syncthreads();
    step.begin(bytes_in_slot<T>(h.width), bytes_in_slot<float>(h.width), a.slot_bytes);
    __syncthreads();
    load_slot(shared, first, memory);
    if (!full) step.load_features();
    if (full && first == 0) eviction.choose();
    wait_for_inputs();
    if (full && first == 0 && a.has_features) eviction.fold();
    __syncthreads();  // what leaves has been read, and the features are whole
    if (full) step.load_features();
    const auto four_of = [&](const HeadRows& rows, int head) {
      return load_token(head_of<T>(rows, b, head), Step::column(), a.width);
    };
    if (Step::warp() < step.queries)
      step.put_query(Step::warp(), four_of(a.q, key_head * h.group + first + Step::warp()));
    if (Step::warp() == Step::kWarps - 1)
      step.put_newest(four_of(a.k, key_head), four_of(a.v, key_head));
    typename Step::Progress seen;
    while (true) {
      wait_for_copies<0>();
      __syncthreads();
      if (full && last) eviction.move_slot(memory, shared.slot, shared.packing);
      step.take(memory, seen);
      if (shared.packing.done()) break;
      __syncthreads();
      step.next_slot();
      load_slot(shared, first, memory);
    }
    if (full && h.any_left) step.look_at_changed_sums();
    step.finish([&](int query, int d, float value) {
      head_of<T>(a.out, b, key_head * h.group + first + query)[d] = from_float<T>(value);
    });
    step.rate_keys();
    if (last) step.append();
  }
}

template <class T, int kWidth>
cudaError_t launch_step(const LinearAttentionShape& s, StepArguments a, cudaStream_t stream) {
  using Step = HybridStep<T, kWidth, kParts<T>, BlockTeam>;
  // All at once where it is not too much for several blocks a multiprocessor.
  constexpr int kMostSlotBytes = 56 << 10;
  const int most = *std::max_element(a.places.limit, a.places.limit + s.key_heads);
  const int64_t wanted = int64_t{2} * most * bytes_in_slot<T>(a.width) +
                         (int64_t{a.pairs} + a.states) * bytes_in_slot<float>(a.width);
  a.slot_bytes = static_cast<int>(std::clamp<int64_t>(
      wanted, 16 * std::max(bytes_in_slot<T>(a.width), bytes_in_slot<float>(a.width)),
      kMostSlotBytes));
  const HybridSizes sizes = {most,    a.block,  true,        std::min(kQueriesTogether, a.group),
                             a.pairs, a.states, Step::kWarps};
  const HybridLists lists =
      HybridLists::from(static_cast<int>(sizeof(typename Step::Shared)) + a.slot_bytes, sizes);
  const dim3 grid(static_cast<unsigned>(s.key_heads), static_cast<unsigned>(s.batch));
  return launch_overlapped(hybrid_attention_step<T, kWidth>, grid, BlockTeam::kThreads,
                           static_cast<size_t>(lists.end), stream, a);
}

// Directions of the queries that attend together, and features that they look at.
void count_features(const LinearAttentionShape& s, StepArguments& a) {
  const FeatureTable& table = a.features;
  for (int64_t head = 0; head < s.heads; head += a.group)
    for (int i = 0; i < a.group; i += kQueriesTogether) {
      const int end = std::min(i + kQueriesTogether, a.group);
      const int pairs = table.first[head + end] - table.first[head + i];
      const int own = table.first[head + 1] - table.first[head];
      a.pairs = std::max(a.pairs, pairs);
      a.states = std::max(a.states, table.sharing > 1 ? own : pairs);
    }
}

}  // namespace

cudaError_t launch_hybrid_attention_step(const LinearAttentionShape& s,
                                         const LinearAttentionFeatures& features,
                                         const ExactCache& cache, const int64_t* past,
                                         const HeadRows& q, const HeadRows& k, const HeadRows& v,
                                         const LinearAttentionSums& sums, const HeadRowsOut& out,
                                         cudaStream_t stream) {
  if (s.tokens != 1 || s.key_heads < 1 || s.key_heads > kMostKeyHeads || s.heads % s.key_heads != 0)
    return cudaErrorInvalidValue;
  StepArguments a = {};
  a.group = static_cast<int>(s.heads / s.key_heads), a.width = static_cast<int>(s.width);
  a.has_features = features.counts != nullptr;
  a.features.sharing = 1;
  if (a.has_features) {
    const FeatureParts f = feature_parts(s, features);
    if (!f.valid) return cudaErrorInvalidValue;
    a.features = f.table;
    a.total = static_cast<int>(f.own);
    const FeatureScales scales = feature_scales(s.width, features.subtract_norm);
    a.inner_scale = scales.inner, a.norm_scale = scales.norm;
    count_features(s, a);
  }
  a.q = q, a.k = k, a.v = v, a.out = out, a.past = past;
  a.cache_k = cache.k, a.cache_v = cache.v, a.score = cache.score;
  a.z = features.z, a.log_alpha = features.log_alpha;
  a.u = features.u, a.norm_weight = features.norm_weight;
  a.sums = sums;
  a.places = cache.places, a.block = static_cast<int>(cache.block);
  a.sinks = static_cast<int>(cache.sinks), a.recent = static_cast<int>(cache.recent);
  a.decay = static_cast<float>(cache.decay), a.by_score = cache.by_score;
  a.scale = static_cast<float>(1 / std::sqrt(static_cast<double>(s.width)));
  a.packed = s.width % 4 == 0 && aligned_to_packs(features.z, features.u, sums.b);
  a.packed_cache =
      s.width % (s.element == Element::kF32 ? 4 : 8) == 0 && aligned_to_packs(cache.k, cache.v);
  return with_width(s.width, [&](auto width) {
    constexpr int kWidth = decltype(width)::value;
    return s.element == Element::kF32 ? launch_step<float, kWidth>(s, a, stream)
                                      : launch_step<__nv_bfloat16, kWidth>(s, a, stream);
  });
}

}  // namespace dofla::cuda
