// How one block chooses which keys of one key head of one sequence leave, segment after segment:
// tokens come until the cache is full, `block` keys leave, `block` tokens come, and so on. Keys lie
// in slots of shared memory and do not move: a slot that a key leaves takes one of the segment
// after next, whose keys are loaded while this segment's queries attend. A warp takes the queries
// of eight tokens of one query head, or of two, with all slots or a part of them.
#pragma once

#include <cfloat>
#include <climits>

#include "dofla/ops/cuda/exact_keys_kernels.h"
#include "dofla/ops/cuda/exact_segments.cuh"
#include "dofla/ops/cuda/fragment.cuh"
#include "dofla/ops/cuda/least_attended.cuh"

namespace dofla::cuda {

constexpr int kMostChooserWarps = 8;
constexpr int kTokens = 8;  // whose queries are taken at a time
constexpr int kNoKey = INT_MAX;
constexpr float kLowest = -FLT_MAX / 4;  // below every logit

struct EvictArguments {
  HeadRows q, k;
  const float* before;  // [B, ΣK]
  EvictionsOut to;
  void* slots;  // [B, Hkv, most_slots, stride] in global memory, or null for shared memory
  int64_t kept_row;
  int places, order_row, key_rows;  // of a sequence, of a head, of a head
  int group, tokens, width, block, sinks, recent;
  int units;       // pairs of query heads, or single ones, that are taken at a time
  int most_slots;  // of any head
  float log2_scale, decay;
  bool packed_q, packed_k;
  KeyCache cache[kMostKeyHeads];
};

// Slots come in sixteens, the height of a product.
__host__ __device__ inline int slots_for(int limit, int block) {
  return (limit + block + 15) / 16 * 16;
}

// What a block has in shared memory beside keys and queries.
struct EvictLists {
  float* found;     // [units, slots]: attention of these tokens' queries, decayed
  float* score;     // [slots]
  int* index;       // [slots]: the key, or kNoKey
  int* by_age;      // [K]: slots of the keys that are held, oldest first
  uint32_t* rated;  // [K]: scores of those that may leave, by age
  int* spare;       // [block]: slots of the next segment
  int* freed;       // [block]
};

inline int64_t list_words(const EvictArguments& a) {
  return (a.units + 4) * int64_t{a.most_slots} + 2 * a.block;
}

__device__ __forceinline__ EvictLists lists_at(const EvictArguments& a, void* at) {
  EvictLists s;
  s.found = static_cast<float*>(at);
  s.score = s.found + a.units * a.most_slots;
  s.index = reinterpret_cast<int*>(s.score + a.most_slots);
  s.by_age = s.index + a.most_slots;
  s.rated = reinterpret_cast<uint32_t*>(s.by_age + a.most_slots);
  s.spare = reinterpret_cast<int*>(s.rated + a.most_slots);
  s.freed = s.spare + a.block;
  return s;
}

// Largest logit and Σ exp2(logit − largest) of a query.
struct QueryTotal {
  float most = kLowest, sum = 0;

  __device__ __forceinline__ void add(float x, float y) {
    const float top = fmaxf(most, fmaxf(x, y));
    sum = fmaf(sum, fast_exp2(most - top), fast_exp2(x - top) + fast_exp2(y - top));
    most = top;
  }
  __device__ __forceinline__ void merge(float other_most, float other_sum) {
    const float top = fmaxf(most, other_most);
    sum = sum * fast_exp2(most - top) + other_sum * fast_exp2(other_most - top);
    most = top;
  }
};

// kHeads: query heads of a warp, 1 or 2.
template <class T, int kWidth, int kHeads>
struct Chooser {
  static constexpr int kStride = kWidth + 8, kColumns = kTokens * kHeads;
  using Rows = Tile<T, kStride>;
  using Parts = float2[kMostChooserWarps][2 * kTokens];

  const EvictArguments& a;
  const KeyCache& cache;
  const EvictLists s;
  const Rows slots;
  const int slot_count, recent;
  const float* powers;  // [kTokens + 1] of the decay
  Parts& parts;         // what warps that share queries found
  int loaded;           // keys that have a slot

  // Keys [loaded, end) go to the slots that `list` names.
  __device__ void load_keys(int end, const int* list) {
    const T* keys = head_of<T>(a.k, blockIdx.y, blockIdx.x);
    const int first = loaded;
    if (end <= first) return;
    load_named_rows<T, kWidth>(
        end - first, a.width, a.packed_k, a.k.data,
        [&](int row) { return keys + (first + row) * a.k.token_step; },
        [&](int row) { return slots.at(list[row], 0); });
    for (int row = threadIdx.x; row < end - first; row += blockDim.x)
      s.index[list[row]] = first + row;
    loaded = end;
  }

  // The queries of the tokens from key `first` on, of the heads from `head` on.
  __device__ void load_queries(int first, int head, const Rows& to) const {
    load_named_rows<T, kWidth>(
        a.units * kColumns, a.width, a.packed_q, a.q.data,
        [&](int row) {
          const int token = first - cache.before + row % kTokens, own = head + row / kTokens;
          return token < a.tokens && own < a.group
                     ? head_of<T>(a.q, blockIdx.y, blockIdx.x * a.group + own) +
                           token * a.q.token_step
                     : static_cast<const T*>(nullptr);
        },
        [&](int row) { return to.at(row, 0); });
  }

  // Calls take(first slot of a lane's rows, logits) for 16 slots after 16 of a warp's part. A lane
  // has slots `slot` and slot + 8 (i / 2) for the tokens 2c and 2c + 1 (i % 2) of every head.
  // Logits of keys that a query does not see are kLowest.
  template <class LoadQuery, class Take>
  __device__ __forceinline__ void for_logits(const LoadQuery& load_query, int first, int part,
                                             int splits, const Take& take) const {
    const int g = threadIdx.x % 32 / 4, c = threadIdx.x % 4;
#pragma unroll 2
    for (int n = 16 * part; n < slot_count; n += 16 * splits) {
      float sums[kHeads][4] = {};
#pragma unroll
      for (int k = 0; k < kWidth / 16; ++k) {
        if constexpr (kHeads == 1)
          multiply_add(sums[0], load_left(slots, n, 16 * k), load_query(k));
        else
          multiply_add(sums[0], sums[1], load_left(slots, n, 16 * k), load_query(k));
      }
      const int key[2] = {s.index[n + g], s.index[n + g + 8]};
#pragma unroll
      for (int h = 0; h < kHeads; ++h) {
#pragma unroll
        for (int i = 0; i < 4; ++i)
          sums[h][i] = key[i / 2] <= first + 2 * c + i % 2 ? sums[h][i] * a.log2_scale : kLowest;
      }
      take(n + g, sums);
    }
  }

  // The queries of `count` tokens from key `first` on, of the heads from `head` on, which are in
  // `queries`, add to the scores.
  __device__ __forceinline__ void attend(int first, int count, int head, const Rows& queries) {
    const int warp = threadIdx.x / 32, splits = blockDim.x / 32 / a.units;
    const int unit = warp / splits, part = warp % splits;
    const int g = threadIdx.x % 32 / 4, c = threadIdx.x % 4;
    const bool works = head + unit * kHeads < a.group;
    const bool alone = a.units == 1 && a.group <= kHeads;  // nobody else adds to these scores
    Fragment<kParts<T>> held[kWidth / 16];
    if (works) {
#pragma unroll
      for (int k = 0; k < kWidth / 16; ++k) held[k] = load_right(queries, unit * kColumns, 16 * k);
    }
    const auto load_query = [&](int k) { return held[k]; };
    QueryTotal total[kHeads][2];
    if (works) {
      for_logits(load_query, first, part, splits, [&](int, const float(&logits)[kHeads][4]) {
#pragma unroll
        for (int h = 0; h < kHeads; ++h) {
          total[h][0].add(logits[h][0], logits[h][2]);
          total[h][1].add(logits[h][1], logits[h][3]);
        }
      });
#pragma unroll
      for (int h = 0; h < kHeads; ++h) {
#pragma unroll
        for (int j = 0; j < 2; ++j) {
          QueryTotal& mine = total[h][j];
#pragma unroll
          for (int step = 4; step < 32; step *= 2)
            mine.merge(__shfl_xor_sync(kWholeWarp, mine.most, step),
                       __shfl_xor_sync(kWholeWarp, mine.sum, step));
          if (splits > 1 && g == 0)
            parts[warp][h * kTokens + 2 * c + j] = make_float2(mine.most, mine.sum);
        }
      }
    }
    if (splits > 1) {
      __syncthreads();
#pragma unroll
      for (int h = 0; h < kHeads; ++h) {
#pragma unroll
        for (int j = 0; j < 2; ++j) {
          QueryTotal all;  // every warp in the same order, so that all find the same
          for (int w = unit * splits; works && w < (unit + 1) * splits; ++w) {
            const float2 other = parts[w][h * kTokens + 2 * c + j];
            all.merge(other.x, other.y);
          }
          total[h][j] = all;
        }
      }
    }
    if (works) {
      float weight[kHeads][2];
#pragma unroll
      for (int h = 0; h < kHeads; ++h) {
#pragma unroll
        for (int j = 0; j < 2; ++j) {
          const int row = 2 * c + j;
          const bool exists = row < count && head + unit * kHeads + h < a.group;
          weight[h][j] = exists ? powers[count - 1 - row] / total[h][j].sum : 0.0f;
        }
      }
      for_logits(load_query, first, part, splits, [&](int slot, const float(&logits)[kHeads][4]) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          float sum = 0;
#pragma unroll
          for (int h = 0; h < kHeads; ++h) {
#pragma unroll
            for (int j = 0; j < 2; ++j)
              sum = fmaf(weight[h][j], fast_exp2(logits[h][2 * half + j] - total[h][j].most), sum);
          }
          sum += __shfl_xor_sync(kWholeWarp, sum, 1);
          sum += __shfl_xor_sync(kWholeWarp, sum, 2);
          const int at = slot + 8 * half;
          if (c != 0) continue;
          if (alone)
            s.score[at] = decayed(at, first, count) + sum;
          else
            s.found[unit * a.most_slots + at] = sum;
        }
      });
    }
    if (alone) return;
    __syncthreads();
    const int units = min(a.units, (a.group - head + kHeads - 1) / kHeads);
    for (int slot = threadIdx.x; slot < slot_count; slot += blockDim.x) {
      float score = head == 0 ? decayed(slot, first, count) : s.score[slot];
      for (int u = 0; u < units; ++u) score += s.found[u * a.most_slots + slot];
      s.score[slot] = score;
    }
  }

  // The score of a slot `count` tokens later, the first of which is key `first`.
  __device__ __forceinline__ float decayed(int slot, int first, int count) const {
    const int age =
        s.index[slot] - first;  // of a key that comes among them, counted from the first
    if (age < 0) return powers[count] * s.score[slot];
    return age < count ? powers[count - age] * cache.first_score : 0.0f;
  }

  // By one warp: of a full cache the `block` smallest scores leave, for the n-th time, those that
  // stay move together in the list, and the next segment joins it.
  __device__ __forceinline__ void evict(int n) const {
    const int lane = threadIdx.x % 32, limit = cache.limit, stay = limit - a.block;
    for (int p = lane; p < limit; p += 32)
      s.rated[p] = rate(s.score[s.by_age[p]], p, limit, a.sinks, recent);
    mark_least_by_warp(s.rated, limit, a.block);
    const int64_t b = blockIdx.y;
    int32_t* const order =
        a.to.order + (b * gridDim.x + blockIdx.x) * a.order_row + int64_t{n} * a.block;
    int32_t* const kept = a.to.kept + b * a.kept_row + cache.first_kept + int64_t{n} * stay;
    part_by_leaving(
        limit, [&](int p) { return s.rated[p] == kLeaves; }, [&](int p) { return s.by_age[p]; },
        [&](int i, int slot) {
          order[i] = s.index[slot];
          s.freed[i] = slot;
          s.index[slot] = kNoKey;
          s.score[slot] = 0;
        },
        [&](int i, int slot) {
          kept[i] = s.index[slot];
          s.by_age[i] = slot;
        });
    for (int i = lane; i < a.block; i += 32) {
      s.by_age[stay + i] = s.spare[i];
      s.spare[i] = s.freed[i];
    }
  }
};

}  // namespace dofla::cuda
