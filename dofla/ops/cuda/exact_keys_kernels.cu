#include <algorithm>
#include <cmath>

#include "dofla/ops/cuda/exact_keys_choice.cuh"
#include "dofla/ops/cuda/exact_keys_kernels.h"
#include "dofla/ops/cuda/launch.cuh"

namespace dofla::cuda {
namespace {

constexpr int64_t kMostShared =
    219 * 1024;  // a block has 227 KiB, some of them for what is declared

// Begins the lists: key i in slot i, as far as there are slots.
__device__ __forceinline__ void begin_lists(const EvictArguments& a, const KeyCache& own,
                                            const EvictLists& s, int loaded) {
  const int slot_count = slots_for(own.limit, a.block);
  const float* before =
      a.before == nullptr ? nullptr : a.before + blockIdx.y * a.places + own.first;
  for (int slot = threadIdx.x; slot < slot_count; slot += blockDim.x) {
    s.score[slot] = slot < own.before ? before[slot] : 0.0f;
    s.index[slot] = slot < loaded ? slot : kNoKey;
    s.by_age[slot] = slot;
  }
  for (int i = threadIdx.x; i < 2 * a.block; i += blockDim.x) s.spare[i] = own.limit + i;
}

__device__ __forceinline__ void write_held(const EvictArguments& a, const KeyCache& own,
                                           const EvictLists& s, int held) {
  const int64_t place = int64_t{blockIdx.y} * a.places + own.first;
  int32_t* const leaves = a.to.leaves + (int64_t{blockIdx.y} * gridDim.x + blockIdx.x) * a.key_rows;
  for (int p = threadIdx.x; p < own.limit; p += blockDim.x) {
    const int slot = s.by_age[p], key = s.index[slot];
    if (p < held) leaves[key] = kStays;
    a.to.held[place + p] = p < held ? static_cast<int>(blockIdx.x) * a.key_rows + key : -1;
    a.to.score[place + p] = p < held ? s.score[slot] : 0.0f;
  }
}

// Two barriers of the block divide a turn. Before the first, one warp chooses which keys leave, and
// the tile warps find weights as if none left; before the second, these add to the scores, and the
// choosing warp brings its lists up to date. Three buffers of queries let it load those of a turn
// while tile warps may still read those of the turn before the last.
template <class T, int kWidth, int kHeads>
__global__ void __launch_bounds__(32 * (kMostTileWarps + 1))
    evict_keys(const __grid_constant__ EvictArguments a) {
  using Cache = Chooser<T, kWidth, kHeads>;
  constexpr int kQueries = Cache::kColumns * Cache::kStride;
  __shared__ float powers[kTokens + 1];
  __shared__ Parts parts;
  const int64_t head = int64_t{blockIdx.y} * gridDim.x + blockIdx.x;
  const KeyCache& own = a.cache[blockIdx.x];
  const int thread = threadIdx.x, threads = blockDim.x, warp = thread / 32;
  const int keys = own.before + a.tokens, loaded = min(own.limit + 2 * a.block, keys);
  T* queries = reinterpret_cast<T*>(shared_memory());
  T* slots = queries;
  if (a.slots == nullptr)
    queries += a.most_slots * Cache::kStride;
  else
    slots = static_cast<T*>(a.slots) + head * a.most_slots * Cache::kStride;
  const EvictLists s = lists_at(a, queries + 3 * kQueries);
  const Cache cache = {a, own, s, {slots}, candidates_of(own.limit, a.sinks, a.recent), keys};
  const Turns turns = {own.limit, a.block, keys, a.group, kHeads};

  Turn past = {}, turn = turns.at(own.before, 0), next = turns.after(turn);
  begin_lists(a, own, s, loaded);
  if (thread <= kTokens) powers[thread] = powf(a.decay, static_cast<float>(thread));
  for (int i = own.times * a.block + thread; i < a.order_row; i += threads)
    a.to.order[head * a.order_row + i] = -1;
  __syncthreads();
  cache.load_keys(0, loaded, s.by_age);
  if (turns.exists(turn)) cache.load_queries(turn, {queries});
  commit_copies();
  wait_for_copies<0>();
  __syncthreads();

  int buffer = 0;
  const auto after = [](int x) { return x == 2 ? 0 : x + 1; };
  if (warp == a.tile_warps) {
    cache.load_ahead(past, next, {queries + kQueries});
    while (turns.exists(turn)) {
      if (turn.evicts) cache.choose();
      meet(0, threads);
      if (turn.evicts) cache.list(turn.times - 1);
      past = turn, turn = next, next = turns.after(next), buffer = after(buffer);
      wait_for_copies<0>();
      // The other warps do this after the barrier, where it would delay the choice.
      cache.load_ahead(past, next, {queries + after(buffer) * kQueries});
      meet(0, threads);
    }
  } else {
    const int all = slots_for(own.limit, a.block) / kSlotPair, first = warp * a.pairs;
    const int pairs = min(max(all - first, 0), a.pairs);
    TileWarp<T, kWidth, kHeads> tiles = {
        a, own, s, {slots}, powers, parts, warp, kSlotPair * first, pairs};
    while (turns.exists(turn)) {
      cache.load_ahead(past, next, {queries + after(buffer) * kQueries});
      tiles.attend(
          turn, {queries + buffer * kQueries}, [&] { meet(0, threads); },
          [&] { meet(1, threads - 32); });
      wait_for_copies<0>();
      meet(0, threads);
      past = turn, turn = next, next = turns.after(next), buffer = after(buffer);
    }
  }
  write_held(a, own, s, keys - own.times * a.block);
}

int stride_of(int64_t width) {
  return (width <= 32 ? 32 : width <= 64 ? 64 : 128) + 8;
}

int64_t bytes_of(Element element) {
  return element == Element::kF32 ? 4 : 2;
}

// Warps of a block where `blocks` are to run at once: a multiprocessor has registers for as many as
// the largest block has. 128 multiprocessors are taken for granted.
int most_tile_warps(int64_t blocks) {
  const int together = std::max(chunks(blocks, 128), 1);
  return std::max((kMostTileWarps + 1) / together - 1, 3);
}

// Query heads of a turn: as many as there are, if the warps have the registers for so many slots.
int heads_of_turn(const ExactKeysShape& s, int pairs) {
  int heads = 1;
  while (heads < kMostHeadsOfTurn && heads < s.heads / s.key_heads &&
         pairs * 2 * heads <= kMostTileWarps * kMostHeadsOfTurn)
    heads *= 2;
  return heads;
}

// Sizes of what a block has.
EvictArguments sizes_of(const ExactKeysShape& s) {
  EvictArguments a = {};
  a.group = static_cast<int>(s.heads / s.key_heads);
  a.block = static_cast<int>(s.block);
  a.most_slots = slots_for(static_cast<int>(s.most_held()), a.block);
  const int pairs = a.most_slots / kSlotPair;
  a.pairs = std::min(chunks(pairs, most_tile_warps(s.batch * s.key_heads)),
                     kMostHeadsOfTurn / heads_of_turn(s, pairs));
  a.tile_warps = chunks(pairs, a.pairs);
  return a;
}

int heads_of_turn(const ExactKeysShape& s, const EvictArguments& a) {
  return heads_of_turn(s, a.most_slots / kSlotPair);
}

int64_t slot_bytes(const ExactKeysShape& s, const EvictArguments& a) {
  return int64_t{a.most_slots} * stride_of(s.width) * bytes_of(s.element);
}

int64_t other_bytes(const ExactKeysShape& s, const EvictArguments& a) {
  const int heads = heads_of_turn(s, a);
  // The right operand of a product is 16 rows high.
  const int64_t queries = int64_t{3} * heads * kTokens + (heads == 1 ? kTokens : 0);
  return queries * stride_of(s.width) * bytes_of(s.element) + list_words(a) * 4;
}

bool slots_in_shared(const ExactKeysShape& s, const EvictArguments& a) {
  return slot_bytes(s, a) + other_bytes(s, a) <= kMostShared;
}

template <class T, int kHeads>
cudaError_t launch_chooser(const ExactKeysShape& s, const EvictArguments& a, cudaStream_t stream) {
  const int64_t shared = other_bytes(s, a) + (a.slots == nullptr ? slot_bytes(s, a) : 0);
  return with_width(s.width, [&](auto width) {
    return launch(evict_keys<T, decltype(width)::value, kHeads>,
                  dim3(static_cast<unsigned>(s.key_heads), static_cast<unsigned>(s.batch)),
                  32 * (a.tile_warps + 1), static_cast<size_t>(shared), stream, a);
  });
}

template <class T>
cudaError_t launch_chooser(const ExactKeysShape& s, const EvictArguments& a, cudaStream_t stream) {
  switch (heads_of_turn(s, a)) {
    case 1:
      return launch_chooser<T, 1>(s, a, stream);
    case 2:
      return launch_chooser<T, 2>(s, a, stream);
    case 4:
      return launch_chooser<T, 4>(s, a, stream);
    default:
      return launch_chooser<T, 8>(s, a, stream);
  }
}

}  // namespace

bool eviction_fits(const ExactKeysShape& s) {
  const EvictArguments a = sizes_of(s);
  return a.tile_warps <= kMostTileWarps &&
         (s.element == Element::kF32 ? other_bytes(s, a) <= kMostShared : slots_in_shared(s, a));
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
  while (a.block << a.together_shift < kTokensTogether) ++a.together_shift;
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
