// How one block chooses which keys of one key head of one sequence leave, segment after segment:
// tokens come until the cache is full, `block` keys leave, `block` tokens come, and so on. Keys lie
// in slots of shared memory and do not move: a slot that a key leaves takes one of the segment
// after next, whose keys are loaded while this segment's queries attend. A warp takes the queries
// of eight tokens of one query head, or of two, with all slots or a part of them.
#pragma once

#include <cfloat>
#include <climits>

#include "dofla/ops/cuda/exact_keys_lists.cuh"
#include "dofla/ops/cuda/exact_segments.cuh"
#include "dofla/ops/cuda/fragment.cuh"
#include "dofla/ops/cuda/least_attended.cuh"

namespace dofla::cuda {

constexpr int kMostChooserWarps = 8;
constexpr int kTokens = 8;  // whose queries are taken at a time
constexpr int kNoKey = INT_MAX;
constexpr float kLowest = -FLT_MAX / 4;  // below every logit

// Largest logit and Σ exp2(logit − largest) of a query.
struct QueryTotal {
  float most = kLowest, sum = 0;

  __device__ __forceinline__ void add(float x, float y, float z, float w) {
    const float top = fmaxf(fmaxf(fmaxf(x, y), fmaxf(z, w)), most);
    sum =
        fmaf(sum, fast_exp2(most - top),
             (fast_exp2(x - top) + fast_exp2(y - top)) + (fast_exp2(z - top) + fast_exp2(w - top)));
    most = top;
  }
  // Of the lanes that have the same query.
  __device__ __forceinline__ void gather_lanes() {
    float top = most;
#pragma unroll
    for (int step = 4; step < 32; step *= 2)
      top = fmaxf(top, __shfl_xor_sync(kWholeWarp, top, step));
    sum *= fast_exp2(most - top);
    most = top;
#pragma unroll
    for (int step = 4; step < 32; step *= 2) sum += __shfl_xor_sync(kWholeWarp, sum, step);
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
  const int slot_count;
  const Candidates candidates;
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

  // Of 32 slots from n on: in tile t a lane has the slots n + g + 16 t and 8 further (i / 2) for
  // the tokens 2c and 2c + 1 (i % 2) of every head. Logits of keys that a query does not see are
  // kLowest.
  using Logits = float[2][kHeads][4];
  __device__ __forceinline__ void find_logits(const Fragment<kParts<T>> (&query)[kWidth / 16],
                                              int first, int n, Logits& logits) const {
    const int g = threadIdx.x % 32 / 4, c = threadIdx.x % 4;
    int key[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) key[i] = s.index[n + g + 8 * i];
#pragma unroll
    for (int i = 0; i < 8 * kHeads; ++i) logits[i / 4 / kHeads][i / 4 % kHeads][i % 4] = 0;
    Fragment<kParts<T>> next[2] = {load_left(slots, n, 0), load_left(slots, n + 16, 0)};
#pragma unroll
    for (int k = 0; k < kWidth / 16; ++k) {
      const Fragment<kParts<T>> left[2] = {next[0], next[1]};
      if (k + 1 < kWidth / 16) {
        next[0] = load_left(slots, n, 16 * (k + 1));
        next[1] = load_left(slots, n + 16, 16 * (k + 1));
      }
#pragma unroll
      for (int t = 0; t < 2; ++t) {
        if constexpr (kHeads == 1)
          multiply_add(logits[t][0], left[t], query[k]);
        else
          multiply_add(logits[t][0], logits[t][1], left[t], query[k]);
      }
    }
#pragma unroll
    for (int t = 0; t < 2; ++t) {
#pragma unroll
      for (int h = 0; h < kHeads; ++h) {
#pragma unroll
        for (int i = 0; i < 4; ++i)
          logits[t][h][i] = key[2 * t + i / 2] <= first + 2 * c + i % 2
                                ? logits[t][h][i] * a.log2_scale
                                : kLowest;
      }
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
    Fragment<kParts<T>> query[kWidth / 16];
    QueryTotal total[kHeads][2];
    Logits logits;  // of the last tile
    if (works) {
#pragma unroll
      for (int k = 0; k < kWidth / 16; ++k) query[k] = load_right(queries, unit * kColumns, 16 * k);
      for (int n = kSlotTile * part; n < slot_count; n += kSlotTile * splits) {
        find_logits(query, first, n, logits);
#pragma unroll
        for (int h = 0; h < kHeads; ++h) {
#pragma unroll
          for (int j = 0; j < 2; ++j)
            total[h][j].add(logits[0][h][j], logits[0][h][j + 2], logits[1][h][j],
                            logits[1][h][j + 2]);
        }
      }
    }
    if (head == 0) decay_scores(first, count);
#pragma unroll
    for (int h = 0; h < kHeads; ++h) {
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        total[h][j].gather_lanes();
        if (splits > 1 && g == 0)
          parts[warp][h * kTokens + 2 * c + j] = make_float2(total[h][j].most, total[h][j].sum);
      }
    }
    __syncthreads();
    if (splits > 1) {
#pragma unroll
      for (int h = 0; h < kHeads; ++h) {
#pragma unroll
        for (int j = 0; j < 2; ++j) {
          QueryTotal all;  // every warp in the same order, so that all find the same
          for (int w = g; w < splits; w += 8) {
            const float2 other = parts[unit * splits + w][h * kTokens + 2 * c + j];
            all.merge(other.x, other.y);
          }
          all.gather_lanes();
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
      const bool once = slot_count <= kSlotTile * splits;
      for (int n = kSlotTile * part; n < slot_count; n += kSlotTile * splits) {
        if (!once) find_logits(query, first, n, logits);
        float sum[4] = {};
#pragma unroll
        for (int i = 0; i < 4; ++i) {
#pragma unroll
          for (int h = 0; h < kHeads; ++h) {
#pragma unroll
            for (int j = 0; j < 2; ++j)
              sum[i] =
                  fmaf(weight[h][j],
                       fast_exp2(logits[i / 2][h][2 * (i % 2) + j] - total[h][j].most), sum[i]);
          }
        }
#pragma unroll
        for (int step = 1; step < 4; step *= 2) {
#pragma unroll
          for (int i = 0; i < 4; ++i) sum[i] += __shfl_xor_sync(kWholeWarp, sum[i], step);
        }
        // Every lane of the four that have found the same writes one of them.
        const float mine = c == 0 ? sum[0] : c == 1 ? sum[1] : c == 2 ? sum[2] : sum[3];
        const int slot = n + g + 8 * c;
        if (alone)
          s.score[slot] += mine;
        else
          s.found[unit * a.most_slots + slot] = mine;
      }
    }
    if (alone) return;
    __syncthreads();
    const int units = min(a.units, (a.group - head + kHeads - 1) / kHeads);
    for (int slot = threadIdx.x; slot < slot_count; slot += blockDim.x) {
      float score = s.score[slot];
      for (int u = 0; u < units; ++u) score += s.found[u * a.most_slots + slot];
      s.score[slot] = score;
    }
  }

  // The scores `count` tokens later, the first of which is key `first`.
  __device__ __forceinline__ void decay_scores(int first, int count) const {
    for (int slot = threadIdx.x; slot < slot_count; slot += blockDim.x) {
      const int age = s.index[slot] - first;  // of a key that comes among them, from the first on
      s.score[slot] = age < 0       ? powers[count] * s.score[slot]
                      : age < count ? powers[count - age] * cache.first_score
                                    : 0.0f;
    }
  }

  // Of a full cache the `block` smallest scores leave, for the n-th time; those that stay move
  // together in the list, and the next segment joins it.
  __device__ __forceinline__ void evict(int n) const {
    const int limit = cache.limit, stay = limit - a.block;
    const int* by_age = s.by_age_at(n);
    for (int p = threadIdx.x; p < in_fours(limit); p += blockDim.x)
      s.rated[p] = rate(p < limit ? s.score[by_age[p]] : 0, p, candidates);
    __syncthreads();
    find_least(s.rated, candidates, a.block, s.leaving, blockDim.x);
    __syncthreads();
    const int64_t b = blockIdx.y, head = b * gridDim.x + blockIdx.x;
    int32_t* const order = a.to.order + head * a.order_row + int64_t{n} * a.block;
    int32_t* const leaves = a.to.leaves + head * a.key_rows;
    const bool listed = n % a.times_together == 0;
    int32_t* const kept =
        a.to.kept + b * a.kept_row + cache.first_kept + int64_t{n / a.times_together} * stay;
    int *next = s.by_age_at(n + 1), *freed = s.spare_at(n + 1);
    for (int p = threadIdx.x; p < limit; p += blockDim.x) {
      const Leaving at = leaving_at(s.leaving, a.block, p);
      const int slot = by_age[p], key = s.index[slot];
      if (at.goes) {
        order[at.before] = key;
        leaves[key] = n;
        freed[at.before] = slot;
        s.index[slot] = kNoKey;
        s.score[slot] = 0;
      } else {
        next[p - at.before] = slot;
        if (listed) kept[p - at.before] = key;
      }
    }
    for (int i = threadIdx.x; i < a.block; i += blockDim.x) next[stay + i] = s.spare_at(n)[i];
  }
};

}  // namespace dofla::cuda
