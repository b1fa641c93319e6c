// The weights that the queries of a turn give to the keys of a cache. A tile warp has 32 slots, or
// a few times as many, and all query heads of the turn. It finds exp2(logit − largest) of them
// before it is known which keys leave, keeps it in registers, and then takes the sums of those that
// stay.
#pragma once

#include <cfloat>

#include "dofla/ops/cuda/exact_keys_lists.cuh"
#include "dofla/ops/cuda/fragment.cuh"

namespace dofla::cuda {

constexpr int kMostTileWarps = 15;  // 512 threads with the one that chooses
constexpr int kMostHeadsOfTurn = 8;
constexpr float kLowest = -FLT_MAX / 4;  // below every logit
// Pairs of slots that a warp has at most, so that 64 registers hold what it keeps.
template <int kHeads>
constexpr int kMostPairs = kMostHeadsOfTurn / kHeads;

// Of a warp and a column, which is a query: the largest logit and Σ exp2(logit − largest).
using Parts = float2[kMostTileWarps][kMostHeadsOfTurn * kTokens];

// Sums over the eight lanes with the same c = lane % 4. Of more than one they are shared out: a
// lane is left with the first max(1, kCount / 8), which were those from the result on, and `most`
// moves along.
template <int kCount, int kStep = 16, int kAll>
__device__ __forceinline__ int sum_over_rows(float (&sum)[kAll], float (&most)[kAll]) {
  if constexpr (kStep < 4) {
    return 0;
  } else if constexpr (kCount == 1) {
    sum[0] += __shfl_xor_sync(kWholeWarp, sum[0], kStep);
    return sum_over_rows<1, kStep / 2>(sum, most);
  } else {
    constexpr int kHalf = kCount / 2;
    const bool upper = threadIdx.x & kStep;
#pragma unroll
    for (int i = 0; i < kHalf; ++i) {
      const float given = upper ? sum[i] : sum[i + kHalf], own = upper ? sum[i + kHalf] : sum[i];
      sum[i] = own + __shfl_xor_sync(kWholeWarp, given, kStep);
      most[i] = upper ? most[i + kHalf] : most[i];
    }
    return (upper ? kHalf : 0) + sum_over_rows<kHalf, kStep / 2>(sum, most);
  }
}

// Sums over the four lanes with the same g = lane / 4; the one of lane c is that of sum[c].
__device__ __forceinline__ float sum_over_columns(const float (&sum)[4]) {
  const bool upper = threadIdx.x & 2, odd = threadIdx.x & 1;
  float two[2];
#pragma unroll
  for (int i = 0; i < 2; ++i)
    two[i] =
        (upper ? sum[i + 2] : sum[i]) + __shfl_xor_sync(kWholeWarp, upper ? sum[i] : sum[i + 2], 2);
  return (odd ? two[1] : two[0]) + __shfl_xor_sync(kWholeWarp, odd ? two[0] : two[1], 1);
}

// Of 32 slots from n on a lane has n + g + 8 i, i < 4, for the tokens 2c and 2c + 1 of every head;
// g = lane / 4, c = lane % 4.
template <class T, int kWidth, int kHeads>
struct TileWarp {
  static constexpr int kPairs = kMostPairs<kHeads>, kColumns = kTokens * kHeads;
  // Below this the sum of the keys that stay is computed again, from a largest logit of their own:
  // what it lacks in float32 would show.
  static constexpr float kTooSmall = 0x1p-64f;
  using Rows = Tile<T, kWidth + 8>;

  const EvictArguments& a;
  const KeyCache& cache;
  const EvictLists& s;
  const Rows slots;
  const float* powers;  // [kTokens + 1] of the decay
  Parts& parts;
  const int warp, first_slot, pairs;
  float weight[kPairs][4][kHeads][2];  // exp2(logit − most)
  float most[kHeads][2];

  // Products of queries and the keys of 32 slots.
  __device__ __forceinline__ void multiply(const Rows& queries, int n,
                                           float (&sums)[2][kHeads][4]) const {
#pragma unroll
    for (int i = 0; i < 8 * kHeads; ++i) sums[i / 4 / kHeads][i / 4 % kHeads][i % 4] = 0;
#pragma unroll(sizeof(T) == 2 ? kWidth / 16 : 1)
    for (int k = 0; k < kWidth; k += 16) {
      const Fragment<kParts<T>> left[2] = {load_left(slots, n, k), load_left(slots, n + 16, k)};
#pragma unroll
      for (int h = 0; h < kHeads; h += 2) {
        const Fragment<kParts<T>> right = load_right(queries, h * kTokens, k);
#pragma unroll
        for (int t = 0; t < 2; ++t) {
          if constexpr (kHeads == 1)
            multiply_add(sums[t][0], left[t], right);
          else
            multiply_add(sums[t][h], sums[t][h + 1], left[t], right);
        }
      }
    }
  }

  // Weights of all keys that have come when the last queries attend and are in no slot of `left`.
  __device__ __forceinline__ void find(const Turn& turn, const Rows& queries,
                                       const uint32_t* left) {
    const int g = threadIdx.x % 32 / 4, c = threadIdx.x % 4;
#pragma unroll
    for (int x = 0; x < 2 * kHeads; ++x) most[x / 2][x % 2] = kLowest;
#pragma unroll
    for (int p = 0; p < kPairs; ++p) {
      if (p >= pairs) break;
      const int n = first_slot + kSlotPair * p;
      float sums[2][kHeads][4];
      multiply(queries, n, sums);
      const uint32_t gone = left == nullptr ? 0 : left[n / kSlotPair] >> g;
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int key = gone >> 8 * i & 1 ? kNoKey : s.index[n + g + 8 * i];
#pragma unroll
        for (int x = 0; x < 2 * kHeads; ++x) {
          const int h = x / 2, j = x % 2;
          const float logit = sums[i / 2][h][i % 2 * 2 + j] * a.log2_scale;
          weight[p][i][h][j] = key <= turn.first + 2 * c + j ? logit : kLowest;
          most[h][j] = fmaxf(most[h][j], weight[p][i][h][j]);
        }
      }
    }
#pragma unroll
    for (int x = 0; x < 2 * kHeads; ++x) most[x / 2][x % 2] = column_max(most[x / 2][x % 2]);
#pragma unroll
    for (int p = 0; p < kPairs; ++p) {
      if (p >= pairs) break;
#pragma unroll
      for (int i = 0; i < 4; ++i) {
#pragma unroll
        for (int x = 0; x < 2 * kHeads; ++x)
          weight[p][i][x / 2][x % 2] = fast_exp2(weight[p][i][x / 2][x % 2] - most[x / 2][x % 2]);
      }
    }
  }

  // Sums of the weights go to `parts`; those in slots of `left` become 0 before. False if a sum is
  // too small.
  __device__ __forceinline__ bool add_up(const uint32_t* left) {
    const int g = threadIdx.x % 32 / 4, c = threadIdx.x % 4;
    float sum[2 * kHeads] = {}, largest[2 * kHeads];
#pragma unroll
    for (int p = 0; p < kPairs; ++p) {
      if (p >= pairs) break;
      const uint32_t gone = left == nullptr ? 0 : left[first_slot / kSlotPair + p] >> g;
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const bool stays = (gone >> 8 * i & 1) == 0;
#pragma unroll
        for (int x = 0; x < 2 * kHeads; ++x) {
          float& own = weight[p][i][x / 2][x % 2];
          own = stays ? own : 0.0f;
          sum[x] += own;
        }
      }
    }
#pragma unroll
    for (int x = 0; x < 2 * kHeads; ++x) largest[x] = most[x / 2][x % 2];
    const int first = sum_over_rows<2 * kHeads>(sum, largest);
    bool enough = true;
#pragma unroll
    for (int i = 0; i < (kHeads + 3) / 4; ++i) {
      const int x = first + i;
      parts[warp][x / 2 * kTokens + 2 * c + x % 2] = make_float2(largest[i], sum[i]);
      enough = enough && sum[i] >= kTooSmall;
    }
    return pairs == 0 || __all_sync(kWholeWarp, enough);
  }

  // What a weight of this warp counts: decayed, and divided by the sum of all warps.
  __device__ __forceinline__ void find_factors(const Turn& turn, float (&factor)[kHeads][2]) const {
    constexpr int kAtOnce = kHeads == 1 ? 4 : 8, kOwn = (kColumns + 31) / 32;
    const int lane = threadIdx.x % 32;
    float own[kOwn];
#pragma unroll
    for (int o = 0; o < kOwn; ++o) {
      const int column = (lane + 32 * o) % kColumns, row = column % kTokens;
      float top = kLowest, total = 0;
      for (int w = 0; w < a.tile_warps; w += kAtOnce) {
        float2 part[kAtOnce];
        const float before = top;
#pragma unroll
        for (int i = 0; i < kAtOnce; ++i) {
          part[i] = w + i < a.tile_warps ? parts[w + i][column] : make_float2(kLowest, 0);
          top = fmaxf(top, part[i].x);
        }
        total *= fast_exp2(before - top);
#pragma unroll
        for (int i = 0; i < kAtOnce; ++i)
          total = fmaf(part[i].y, fast_exp2(part[i].x - top), total);
      }
      const bool exists = row < turn.count && turn.head + column / kTokens < a.group;
      own[o] = exists ? __fdividef(powers[turn.count - 1 - row], total) *
                            fast_exp2(parts[warp][column].x - top)
                      : 0.0f;
    }
#pragma unroll
    for (int x = 0; x < 2 * kHeads; ++x) {
      const int column = x / 2 * kTokens + 2 * (lane % 4) + x % 2;
      factor[x / 2][x % 2] = __shfl_sync(kWholeWarp, own[x / 8], column % 32);
    }
  }

  // The score of a slot before these queries add to it: decayed, or that of a new key.
  __device__ __forceinline__ float score_before(const Turn& turn, int slot) const {
    if (turn.head > 0) return s.score[slot];
    const int age = s.index[slot] - turn.first;  // of a key that comes among them, from the first
    return age < 0            ? powers[turn.count] * s.score[slot]
           : age < turn.count ? powers[turn.count - age] * cache.first_score
                              : 0.0f;
  }

  // The weights join the scores, one slot of each pair by each lane.
  __device__ __forceinline__ void add_scores(const float (&factor)[kHeads][2],
                                             const float (&first)[kPairs]) const {
    const int own = threadIdx.x % 32 / 4 + 8 * (threadIdx.x % 4);
#pragma unroll
    for (int p = 0; p < kPairs; ++p) {
      if (p >= pairs) break;
      float sum[4] = {};
#pragma unroll
      for (int i = 0; i < 4; ++i) {
#pragma unroll
        for (int x = 0; x < 2 * kHeads; ++x)
          sum[i] = fmaf(factor[x / 2][x % 2], weight[p][i][x / 2][x % 2], sum[i]);
      }
      s.score[first_slot + kSlotPair * p + own] = first[p] + sum_over_columns(sum);
    }
  }

  // The queries of a turn add to the scores. Their weights are found while the choosing warp
  // chooses; choice() is where its choice becomes known, sums() where all tile warps have sums.
  template <class Choice, class Sums>
  __device__ __forceinline__ void attend(const Turn& turn, const Rows& queries,
                                         const Choice& choice, const Sums& sums) {
    const uint32_t* left = nullptr;
    float first[kPairs];
    for (bool again = false;; again = true) {
      find(turn, queries, left);
      if (!again) {
        const int own = first_slot + threadIdx.x % 32 / 4 + 8 * (threadIdx.x % 4);
#pragma unroll
        for (int p = 0; p < kPairs; ++p)
          first[p] = p < pairs ? score_before(turn, own + kSlotPair * p) : 0.0f;
        choice();
        left = turn.evicts ? s.left : nullptr;
      }
      if (add_up(left) || again || left == nullptr) break;
    }
    sums();
    float factor[kHeads][2];
    find_factors(turn, factor);
    add_scores(factor, first);
  }
};

}  // namespace dofla::cuda
