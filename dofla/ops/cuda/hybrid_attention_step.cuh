// What one block does for one token of one key head of one sequence, with all its query heads: if
// the cache is full, keys leave for the state; the new key joins; queries look at the keys and at
// the state. To a query a key is a feature that holds one value. Lanes lie along the coordinates of
// keys as they do along those of features (linear_attention_step.cuh).
#pragma once

#include "dofla/ops/cuda/feature_parts.cuh"
#include "dofla/ops/cuda/least_attended.cuh"
#include "dofla/ops/cuda/linear_attention_step.cuh"

namespace dofla::cuda {

constexpr int kHybridThreads = 256, kHybridWarps = kHybridThreads / 32;

struct HybridStepArguments {
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
};

// Lists of the block, all in the order of the cache.
struct StepLists {
  uint32_t* rated;  // [K, in fours]
  int* found;       // [block, in fours]: where those that leave are, in any order
  float* logits;    // [2, K]: of a query head and of the next
  float* score;     // [K]
  float* attended;  // [K]: by all query heads
  int* staying;     // [K]: where those that stay are
  int* leaving;     // [block]: where those that leave are
};
inline size_t list_bytes(int limit, int block) {
  return static_cast<size_t>(in_fours(limit) + in_fours(block) + 5 * limit + block) * 4;
}
__device__ __forceinline__ StepLists step_lists(int limit, int block) {
  StepLists s;
  s.rated = reinterpret_cast<uint32_t*>(shared_memory());
  s.found = reinterpret_cast<int*>(s.rated + in_fours(limit));
  s.logits = reinterpret_cast<float*>(s.found + in_fours(block));
  s.score = s.logits + 2 * limit;
  s.attended = s.score + limit;
  s.staying = reinterpret_cast<int*>(s.attended + limit);
  s.leaving = s.staying + limit;
  return s;
}

// Four coordinates of a key or value; those past its width are 0.
__device__ __forceinline__ float4 load_cached(const float* row, int d, int width, bool packed) {
  return load_four(row, d, width, packed);
}
__device__ __forceinline__ float4 load_cached(const __nv_bfloat16* row, int d, int width,
                                              bool packed) {
  if (!packed) return load_token(row, d, width);
  if (d >= width) return {};
  const uint2 words = *reinterpret_cast<const uint2*>(row + d);
  const float2 low = unpack_bf16(words.x), high = unpack_bf16(words.y);
  return make_float4(low.x, low.y, high.x, high.y);
}

// Row staying[i] becomes row i, for i < count: none moves back, so that what a step of the block
// overwrites has been read.
template <class Unit>
__device__ __forceinline__ void move_together(Unit* rows, int units, const int* staying,
                                              int count) {
  for (int start = 0; start < count * units; start += kHybridThreads) {
    const int i = start + threadIdx.x;
    const bool inside = i < count * units;
    Unit unit = {};
    if (inside) unit = rows[staying[i / units] * units + i % units];
    __syncthreads();
    if (inside) rows[i] = unit;
    __syncthreads();
  }
}

template <class T, int kWidth>
struct HybridStep {
  static constexpr int kLanes = kWidth / 4, kRows = kHybridThreads / kLanes;
  static constexpr int kHeld = 4;  // keys that a thread has at a time
  using Round = StepRound<kHybridThreads, kLanes>;

  const HybridStepArguments& a;
  const StepLists s;
  T *keys, *values;  // [K, D]
  int b, key_head, limit;

  __device__ static int column() { return threadIdx.x % kLanes * 4; }

  // The state that query head `head` reads: its first feature and how many it has.
  __device__ int first_of(int head) const { return a.features.first_of_state(head); }
  __device__ int count_of(int head) const {
    return a.features.first[head + 1] - a.features.first[head];
  }

  // What a state needs of the key at place p.
  __device__ StepToken leaving_token(int p, int features) const {
    StepToken token = {};
    token.k = load_cached(keys + p * a.width, column(), a.width, a.packed_cache);
    token.v = load_cached(values + p * a.width, column(), a.width, a.packed_cache);
    token.inner_scale = a.inner_scale;
    const float weight = a.norm_weight == nullptr ? 1.0f : a.norm_weight[key_head];
    token.key_norm = over_lanes<kLanes>(dot(token.k, token.k)) * a.norm_scale * weight;
    token.log_count = logf(static_cast<float>(features));
    return token;
  }

  // The keys that leave join the states of the key head.
  __device__ void fold() const {
    for (int i = 0; i < a.group; i += a.features.sharing) {
      const int head = key_head * a.group + i, first = first_of(head), count = count_of(head);
      const int64_t own = int64_t{b} * a.total + first;
      for (int start = 0; start < count; start += Round::kCount) {
        Round round;
        load_round(round, a, first + start, own + start, count - start);
        for (int l = 0; l < a.block; ++l) round.advance(leaving_token(s.leaving[l], count));
        round.store(a.sums, own + start, count - start, a.width, a.packed);
      }
    }
  }

  // Of a full cache `block` keys leave, and the others move together.
  __device__ void make_room() const {
    __syncthreads();
    const Candidates all = candidates_of(limit, a.sinks, a.recent);
    for (int p = threadIdx.x; p < in_fours(limit); p += kHybridThreads)
      s.rated[p] = rate(a.by_score && p < limit ? s.score[p] : 0, p, all);
    begin_leaving(a.block, s.found);
    __syncthreads();
    find_least(s.rated, all, a.block, s.found);  // of equal scores the oldest: a window
    __syncthreads();
    for (int p = threadIdx.x; p < limit; p += kHybridThreads) {
      const Leaving at = leaving_at(s.found, a.block, p);
      if (at.goes)
        s.leaving[at.before] = p;
      else
        s.staying[p - at.before] = p;
    }
    __syncthreads();
    if (a.has_features) fold();
    __syncthreads();  // what leaves has been read
    const int stay = limit - a.block;
    if (a.packed_cache) {
      const int units = a.width / Pack<T>::kSize;
      move_together(reinterpret_cast<uint4*>(keys), units, s.staying, stay);
      move_together(reinterpret_cast<uint4*>(values), units, s.staying, stay);
    } else {
      move_together(keys, a.width, s.staying, stay);
      move_together(values, a.width, s.staying, stay);
    }
    move_together(s.score, 1, s.staying, stay);
  }

  __device__ void append(int place) const {
    const T* key = head_of<T>(a.k, b, key_head);
    const T* value = head_of<T>(a.v, b, key_head);
    for (int d = threadIdx.x; d < a.width; d += kHybridThreads) {
      keys[place * a.width + d] = key[d];
      values[place * a.width + d] = value[d];
    }
    if (threadIdx.x == 0) s.score[place] = a.places.first_score[key_head];
  }

  // A query looks at `count` keys. Logits are given `shift` more.
  __device__ void look_at_keys(float4 q, float shift, int count, float* logits,
                               Found& found) const {
    for (int start = 0; start < count; start += kRows * kHeld) {
      float logit[kHeld], most = -INFINITY;
      float4 value[kHeld];
#pragma unroll
      for (int i = 0; i < kHeld; ++i) {
        const int p = start + threadIdx.x / kLanes + i * kRows;
        const bool inside = p < count;
        float4 key = {};
        value[i] = {};
        if (inside) {
          key = load_cached(keys + p * a.width, column(), a.width, a.packed_cache);
          value[i] = load_cached(values + p * a.width, column(), a.width, a.packed_cache);
        }
        const float x = fmaf(over_lanes<kLanes>(dot(key, q)), a.scale, shift);
        if (inside && column() == 0) logits[p] = x;
        logit[i] = inside ? x : -INFINITY;
        most = fmaxf(most, logit[i]);
      }
      found.rescale(fmaxf(found.shift, most_of_rows<kLanes>(most)));
#pragma unroll
      for (int i = 0; i < kHeld; ++i)
        if (logit[i] != -INFINITY) found.add(fast_exp(logit[i] - found.shift), 1.0f, value[i]);
    }
  }

  // And at the state of its head, where features leave out −|q|²/(2√D).
  __device__ void look_at_state(int head, float4 q, Found& found) const {
    const int first = first_of(head), count = count_of(head);
    const int64_t own = int64_t{b} * a.total + first;
    StepToken token = {};
    token.q = q, token.inner_scale = a.inner_scale;
    token.log_count = logf(static_cast<float>(count));
    for (int start = 0; start < count; start += Round::kCount) {
      Round round;
      load_round(round, a, first + start, own + start, count - start);
      if (a.u == nullptr) {
        round.look(token, count - start, found);
      } else {
        const float* directions = a.u + int64_t{a.features.first[head]} * a.width;
        const auto direction = [&](int held) {
          const int row = start + Round::row(held);
          return row < count
                     ? load_four(directions + int64_t{row} * a.width, column(), a.width, a.packed)
                     : float4{};
        };
        round.look(token, count - start, direction, found);
      }
    }
  }
};

// What the warps found among the keys alone: shift and weight.
using KeyTotals = float2[kHybridWarps];

// Adds the attention of a query head to the keys among themselves.
__device__ __forceinline__ void add_attended(const KeyTotals& totals, const float* logits,
                                             int count, float* attended) {
  float shift = -INFINITY, total = 0;
#pragma unroll
  for (int w = 0; w < kHybridWarps; ++w) shift = fmaxf(shift, totals[w].x);
#pragma unroll
  for (int w = 0; w < kHybridWarps; ++w)
    total = fmaf(fast_exp(totals[w].x - shift), totals[w].y, total);
  for (int p = threadIdx.x; p < count; p += kHybridThreads)
    attended[p] += fast_exp(logits[p] - shift) / total;
}

}  // namespace dofla::cuda
