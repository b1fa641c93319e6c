// How one block chooses which keys of one key head of one sequence leave, segment after segment:
// tokens come until the cache is full, `block` keys leave, `block` tokens come, and so on. Keys lie
// in slots of shared memory and do not move: a slot that a key leaves takes one of the segment
// after next, whose keys are loaded while this segment's queries attend. Every warp has one query
// head, or shares one with others, each with a part of the slots, and takes the queries of 16
// tokens at a time.
#pragma once

#include <cfloat>
#include <climits>

#include "dofla/ops/cuda/exact_keys_kernels.h"
#include "dofla/ops/cuda/exact_segments.cuh"
#include "dofla/ops/cuda/fragment.cuh"
#include "dofla/ops/cuda/least_attended.cuh"

namespace dofla::cuda {

constexpr int kChooserWarps = 8, kChooserThreads = 32 * kChooserWarps;
constexpr int kTile = 16;  // queries of a head at a time
constexpr int kNoKey = INT_MAX;
constexpr float kLowest = -FLT_MAX / 4;  // below every logit

struct EvictArguments {
  HeadRows q, k;
  const float* before;  // [B, Hkv, N − T]
  EvictionsOut to;
  void* slots;  // [B, Hkv, slots, stride] in global memory, or null for shared memory
  int group, keys, past, width, limit, block, times, sinks, recent;
  int heads;  // query heads at a time
  int slot_count;
  float log2_scale, decay, first_score;
  bool packed_q, packed_k;
};

// What a block has in shared memory beside keys and queries.
struct EvictLists {
  float* found;     // [heads, slots]: attention of this tile's queries, decayed
  float* score;     // [slots]
  int* index;       // [slots]: the key, or kNoKey
  int* by_age;      // [K]: slots of the keys that are held, oldest first
  uint32_t* rated;  // [K, in fours]: scores of those that may leave, by age
  int* leaves;      // [K]
  int* spare;       // [block]: slots of the next segment
  int* freed;       // [block]
};

inline int64_t list_words(const EvictArguments& a) {
  return (a.heads + 2) * int64_t{a.slot_count} + 2 * in_fours(a.limit) + a.limit + 2 * a.block;
}

__device__ __forceinline__ EvictLists lists_at(const EvictArguments& a, void* at) {
  EvictLists s;
  s.found = static_cast<float*>(at);  // slots come in sixteens, so that `rated` lies at 16 bytes
  s.score = s.found + a.heads * a.slot_count;
  s.index = reinterpret_cast<int*>(s.score + a.slot_count);
  s.rated = reinterpret_cast<uint32_t*>(s.index + a.slot_count);
  s.by_age = reinterpret_cast<int*>(s.rated + in_fours(a.limit));
  s.leaves = s.by_age + in_fours(a.limit);
  s.spare = s.leaves + a.limit;
  s.freed = s.spare + a.block;
  return s;
}

// Largest logit and Σ exp2(logit − largest) of a lane's two rows.
struct RowTotals {
  float most[2] = {kLowest, kLowest}, total[2] = {};

  __device__ __forceinline__ void add(int half, const float (&x)[4]) {
    const float top = fmaxf(fmaxf(x[0], x[1]), fmaxf(x[2], x[3]));
    if (top > most[half]) {
      total[half] *= fast_exp2(most[half] - top);
      most[half] = top;
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) total[half] += fast_exp2(x[i] - most[half]);
  }
  __device__ __forceinline__ void merge(int half, float other_most, float other_total) {
    const float top = fmaxf(most[half], other_most);
    total[half] =
        total[half] * fast_exp2(most[half] - top) + other_total * fast_exp2(other_most - top);
    most[half] = top;
  }
};

template <class T, int kWidth>
struct Chooser {
  static constexpr int kStride = kWidth + 8;
  static constexpr bool kFast = sizeof(T) == 2;

  const EvictArguments& a;
  const EvictLists s;
  const Tile<T, kStride> slots, queries;
  const float* powers;     // [kTile + 1] of the decay
  float2 (*parts)[kTile];  // [kChooserWarps]: what warps that share a head found
  int loaded;              // keys that have a slot

  // Keys [loaded, end) go to the slots that `list` names.
  __device__ void load_keys(int end, const int* list) {
    const T* keys = head_of<T>(a.k, blockIdx.y, blockIdx.x);
    const int first = loaded;
    if (end <= first) return;
    load_named_rows<T, kWidth>(
        end - first, a.width, a.packed_k, a.k.data,
        [&](int row) { return keys + (first + row) * a.k.token_step; },
        [&](int row) { return slots.at(list[row], 0); });
    for (int row = threadIdx.x; row < end - first; row += kChooserThreads)
      s.index[list[row]] = first + row;
    loaded = end;
  }

  // The queries of the tokens from key `first` on, of the heads from `head` on.
  __device__ void load_queries(int first, int head) const {
    const int heads = min(a.heads, a.group - head);
    load_named_rows<T, kWidth>(
        heads * kTile, a.width, a.packed_q, a.q.data,
        [&](int row) {
          const int token = first + row % kTile;
          const int64_t at = int64_t{token - a.past} * a.q.token_step;
          return token < a.keys
                     ? head_of<T>(a.q, blockIdx.y, blockIdx.x * a.group + head + row / kTile) + at
                     : static_cast<const T*>(nullptr);
        },
        [&](int row) { return queries.at(row, 0); });
  }

  // Calls take(first slot of a lane's columns, logits) for 16 slots after 16 of a warp's part: row
  // `half` of the lane has the columns slot, slot + 1, slot + 8 and slot + 9. Those that it does
  // not see have kLowest.
  template <class LoadQuery, class Take>
  __device__ __forceinline__ void for_logits(const LoadQuery& load_query, int first, int part,
                                             int splits, const Take& take) const {
    const int g = threadIdx.x % 32 / 4, c = threadIdx.x % 4;
    for (int n = 16 * part; n < a.slot_count; n += 16 * splits) {
      float sums[2][4] = {};
#pragma unroll
      for (int k = 0; k < kWidth / 16; ++k)
        multiply_add(sums[0], sums[1], load_query(k), load_right(slots, n, 16 * k));
      float logits[2][4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int key = s.index[n + 2 * c + i % 2 + i / 2 * 8];
#pragma unroll
        for (int half = 0; half < 2; ++half)
          logits[half][i] =
              key <= first + g + 8 * half ? sums[i / 2][2 * half + i % 2] * a.log2_scale : kLowest;
      }
      take(n + 2 * c, logits);
    }
  }

  // The queries of `rows` tokens from key `first` on, of heads `head` on, add to `found`. Queries
  // are in shared memory; `prefetch` brings the next ones as soon as these are not needed any more.
  template <class Prefetch>
  __device__ __forceinline__ void attend(int first, int rows, int head, const Prefetch& prefetch) {
    const int warp = threadIdx.x / 32, splits = kChooserWarps / a.heads;
    const int mine = warp / splits, part = warp % splits;
    const int heads = min(a.heads, a.group - head);
    const int g = threadIdx.x % 32 / 4, c = threadIdx.x % 4;
    Fragment<1> held[kFast ? kWidth / 16 : 1];
    if constexpr (kFast) {
      if (mine < heads) {
#pragma unroll
        for (int k = 0; k < kWidth / 16; ++k) held[k] = load_left(queries, mine * kTile, 16 * k);
      }
      __syncthreads();
      prefetch();
    }
    const auto load_query = [&](int k) {
      if constexpr (kFast)
        return held[k];
      else
        return load_left(queries, mine * kTile, 16 * k);
    };
    RowTotals rows_of_lane;
    if (mine < heads) {
      for_logits(load_query, first, part, splits, [&](int, const float(&logits)[2][4]) {
        rows_of_lane.add(0, logits[0]);
        rows_of_lane.add(1, logits[1]);
      });
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const float most = quad_max(rows_of_lane.most[half]);
        const float total = rows_of_lane.total[half] * fast_exp2(rows_of_lane.most[half] - most);
        rows_of_lane.most[half] = most;
        rows_of_lane.total[half] = quad_sum(total);
        if (c == 0) parts[warp][g + 8 * half] = make_float2(most, rows_of_lane.total[half]);
      }
    }
    __syncthreads();
    if (mine < heads) {
      float weight[2];
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int row = g + 8 * half;
        RowTotals all;  // every warp in the same order, so that all find the same
        for (int w = mine * splits; w < (mine + 1) * splits; ++w)
          all.merge(0, parts[w][row].x, parts[w][row].y);
        rows_of_lane.most[half] = all.most[0];
        weight[half] = row < rows ? powers[rows - 1 - row] / all.total[0] : 0.0f;
      }
      for_logits(load_query, first, part, splits, [&](int slot, const float(&logits)[2][4]) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          float sum = weight[0] * fast_exp2(logits[0][i] - rows_of_lane.most[0]) +
                      weight[1] * fast_exp2(logits[1][i] - rows_of_lane.most[1]);
#pragma unroll
          for (int step = 4; step < 32; step *= 2) sum += __shfl_xor_sync(kWholeWarp, sum, step);
          if (g == 0) s.found[mine * a.slot_count + slot + i % 2 + i / 2 * 8] = sum;
        }
      });
    }
    __syncthreads();
    for (int slot = threadIdx.x; slot < a.slot_count; slot += kChooserThreads) {
      float score = head == 0 ? decayed(slot, first, rows) : s.score[slot];
      for (int h = 0; h < heads; ++h) score += s.found[h * a.slot_count + slot];
      s.score[slot] = score;
    }
    if constexpr (!kFast) prefetch();
  }

  // The score of a slot `rows` tokens later, the first of which is key `first`.
  __device__ __forceinline__ float decayed(int slot, int first, int rows) const {
    const int age =
        s.index[slot] - first;  // of a key that comes among them, counted from the first
    if (age < 0) return powers[rows] * s.score[slot];
    return age < rows ? powers[rows - age] * a.first_score : 0.0f;
  }

  // Of a full cache the `block` smallest scores leave, for the n-th time.
  __device__ __forceinline__ void evict(int n) {
    __syncthreads();
    for (int p = threadIdx.x; p < in_fours(a.limit); p += kChooserThreads)
      s.rated[p] = rate(p < a.limit ? s.score[s.by_age[p]] : 0, p, a.limit, a.sinks, a.recent);
    __syncthreads();
    mark_least(s.rated, a.limit, a.block, s.leaves);
    __syncthreads();
    if (threadIdx.x < 32) close_ranks(n);
  }

  // By one warp: those that stay move together in the list, and the next segment joins it.
  __device__ __forceinline__ void close_ranks(int n) {
    const int stay = a.limit - a.block;
    const int64_t time = (int64_t{blockIdx.y} * gridDim.x + blockIdx.x) * a.times + n;
    part_by_leaving(
        s.leaves, a.limit, [&](int p) { return s.by_age[p]; },
        [&](int i, int slot) {
          a.to.order[time * a.block + i] = s.index[slot];
          s.freed[i] = slot;
          s.index[slot] = kNoKey;
          s.score[slot] = 0;
        },
        [&](int i, int slot) {
          a.to.kept[time * stay + i] = s.index[slot];
          s.by_age[i] = slot;
        });
    for (int i = threadIdx.x; i < a.block; i += 32) {
      s.by_age[stay + i] = s.spare[i];
      s.spare[i] = s.freed[i];
    }
  }
};

}  // namespace dofla::cuda
