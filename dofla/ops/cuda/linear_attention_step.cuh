// One token of a state in the recurrent form: every feature's sums move on by the key, and the
// query, or those of all query heads that share the state, look at them. Lanes lie along the head's
// coordinates, four each, and features beside each other.
#pragma once

#include "dofla/ops/cuda/linear_attention_kernels.h"
#include "dofla/ops/cuda/tile_mma.cuh"
#include "dofla/ops/cuda/vector.cuh"

namespace dofla::cuda {

// Sums and maxima over the threads of a feature, and over the features that a warp has side by
// side.
template <int kLanes>
__device__ __forceinline__ float over_lanes(float x) {
#pragma unroll
  for (int step = kLanes / 2; step > 0; step /= 2) x += __shfl_xor_sync(kWholeWarp, x, step);
  return x;
}
template <int kLanes>
__device__ __forceinline__ float over_rows(float x) {
#pragma unroll
  for (int step = kLanes; step < 32; step *= 2) x += __shfl_xor_sync(kWholeWarp, x, step);
  return x;
}
template <int kLanes>
__device__ __forceinline__ float most_of_rows(float x) {
#pragma unroll
  for (int step = kLanes; step < 32; step *= 2) x = fmaxf(x, __shfl_xor_sync(kWholeWarp, x, step));
  return x;
}

// A thread's four coordinates of a token, and what log φ̃ is made of.
struct StepToken {
  float4 q, k, v;
  float inner_scale;  // of z·x
  float key_norm;     // what a key's norm takes away
  float log_count;    // of the head's features
};

// One feature, as a thread has it.
struct StepFeature {
  float4 z, sums;
  float log_alpha, log_max, a;

  __device__ __forceinline__ float offset(const StepToken& token) const {
    return 0.5f * (log_alpha - token.log_count);
  }

  // To the old sums times decay plus key times v.
  template <int kLanes>
  __device__ __forceinline__ void advance(const StepToken& token) {
    const float along_k = over_lanes<kLanes>(dot(z, token.k));
    const float log_key = fmaf(along_k, token.inner_scale, offset(token) - token.key_norm);
    const float peak = fmaxf(log_max, log_key);
    const float decay = fast_exp(log_max - peak), key = fast_exp(log_key - peak);
    const float4 v = token.v;
    log_max = peak;
    a = fmaf(a, decay, key);
    sums = make_float4(fmaf(sums.x, decay, key * v.x), fmaf(sums.y, decay, key * v.y),
                       fmaf(sums.z, decay, key * v.z), fmaf(sums.w, decay, key * v.w));
  }

  // What the query has of the feature in this direction, as a logarithm.
  template <int kLanes>
  __device__ __forceinline__ float log_found(float4 direction, const StepToken& token) const {
    const float along_q = over_lanes<kLanes>(dot(direction, token.q));
    return fmaf(along_q, token.inner_scale, offset(token)) + log_max;
  }
};

// What the query finds in some features, relative to exp(shift); a warp has the same shift.
struct Found {
  float shift = -INFINITY, weight = 0;
  float4 values = {};

  __device__ __forceinline__ void rescale(float to) {
    if (to == -INFINITY) return;  // still nothing
    const float factor = fast_exp(shift - to);
    shift = to;
    weight *= factor;
    values.x *= factor, values.y *= factor, values.z *= factor, values.w *= factor;
  }
  __device__ __forceinline__ void add(float query, float a, float4 sums) {
    weight = fmaf(query, a, weight);
    values.x = fmaf(query, sums.x, values.x);
    values.y = fmaf(query, sums.y, values.y);
    values.z = fmaf(query, sums.z, values.z);
    values.w = fmaf(query, sums.w, values.w);
  }
};

// A thread's four coordinates of a feature's direction and of its sums.
struct DirectionAndSums {
  float4 z = {}, sums = {};
};

// Four coordinates of a row; those past its width are 0.
__device__ __forceinline__ float4 load_four(const float* row, int d, int width, bool packed) {
  if (packed) return d < width ? *reinterpret_cast<const float4*>(row + d) : float4{};
  return make_float4(d < width ? row[d] : 0.0f, d + 1 < width ? row[d + 1] : 0.0f,
                     d + 2 < width ? row[d + 2] : 0.0f, d + 3 < width ? row[d + 3] : 0.0f);
}

// Four numbers of a token's head.
template <class T>
__device__ __forceinline__ float4 load_token(const T* head, int d, int width) {
  const auto at = [&](int i) { return i < width ? to_float(__ldcg(head + i)) : 0.0f; };
  return make_float4(at(d), at(d + 1), at(d + 2), at(d + 3));
}

__device__ __forceinline__ void store_four(float* row, int d, int width, bool packed, float4 x) {
  if (packed) {
    if (d < width) *reinterpret_cast<float4*>(row + d) = x;
    return;
  }
  const float values[4] = {x.x, x.y, x.z, x.w};
#pragma unroll
  for (int i = 0; i < 4; ++i)
    if (d + i < width) row[d + i] = values[i];
}

// The features of a head that a block takes at a time, kLanes threads a feature and kHeld features
// a thread. `count` is how many are left, this round's included.
template <int kBlockThreads, int kLanes, int kHeld>
struct FeatureRound {
  static constexpr int kRows = kBlockThreads / kLanes, kCount = kRows * kHeld;
  StepFeature held[kHeld];

  static __device__ int row(int i) { return threadIdx.x / kLanes + i * kRows; }
  static __device__ int column() { return threadIdx.x % kLanes * 4; }

  // Of the sums this round's begin at `own`.
  __device__ __forceinline__ void load_scalars(const float* log_alpha,
                                               const LinearAttentionSums& sums, int64_t own,
                                               int count) {
#pragma unroll
    for (int i = 0; i < kHeld; ++i) {
      const bool inside = row(i) < count;
      held[i].log_alpha = inside ? log_alpha[row(i)] : 0;
      held[i].log_max = inside ? sums.log_max[own + row(i)] : 0;
      held[i].a = inside ? sums.a[own + row(i)] : 0;
    }
  }

  // Tied features have the same direction for queries as for keys.
  __device__ __forceinline__ void look(const StepToken& token, int count, Found& found) const {
    look(
        token, count, [&](int i) { return held[i].z; }, found);
  }

  // From wherever find(row, column) finds them.
  template <class Find>
  __device__ __forceinline__ void load_vectors(int count, const Find& find) {
#pragma unroll
    for (int i = 0; i < kHeld; ++i) {
      const DirectionAndSums found = row(i) < count ? find(row(i), column()) : DirectionAndSums{};
      held[i].z = found.z, held[i].sums = found.sums;
    }
  }

  __device__ __forceinline__ void store(const LinearAttentionSums& sums, int64_t own, int count,
                                        int width, bool packed) const {
#pragma unroll
    for (int i = 0; i < kHeld; ++i) {
      if (row(i) >= count) continue;
      const int64_t m = own + row(i);
      store_four(sums.b + m * width, column(), width, packed, held[i].sums);
      if (column() == 0) sums.log_max[m] = held[i].log_max, sums.a[m] = held[i].a;
    }
  }

  // The features move on by the token's key.
  __device__ __forceinline__ void advance(const StepToken& token) {
#pragma unroll
    for (int i = 0; i < kHeld; ++i) held[i].template advance<kLanes>(token);
  }

  // The query looks at them; direction(i) is the one of feature row(i).
  template <class Direction>
  __device__ __forceinline__ void look(const StepToken& token, int count,
                                       const Direction& direction, Found& found) const {
    float log_query[kHeld], most = -INFINITY;
#pragma unroll
    for (int i = 0; i < kHeld; ++i) {
      const float log_found = held[i].template log_found<kLanes>(direction(i), token);
      log_query[i] = row(i) < count ? log_found : -INFINITY;
      most = fmaxf(most, log_query[i]);
    }
    found.rescale(fmaxf(found.shift, most_of_rows<kLanes>(most)));
#pragma unroll
    for (int i = 0; i < kHeld; ++i)
      if (row(i) < count) found.add(fast_exp(log_query[i] - found.shift), held[i].a, held[i].sums);
  }
};

// A round of 64 features.
template <int kBlockThreads, int kLanes>
using StepRound = FeatureRound<kBlockThreads, kLanes, 64 * kLanes / kBlockThreads>;

// Features from `first` on among all, `own` on among the sums; `count` are left. The arguments of a
// kernel have z, log_alpha, sums, width and packed.
template <class Round, class Arguments>
__device__ __forceinline__ void load_round(Round& round, const Arguments& a, int first, int64_t own,
                                           int count) {
  round.load_vectors(count, [&](int row, int column) {
    const auto four = [&](const float* rows, int64_t r) {
      return load_four(rows + r * a.width, column, a.width, a.packed);
    };
    return DirectionAndSums{four(a.z, first + row), four(a.sums.b, own + row)};
  });
  round.load_scalars(a.log_alpha + first, a.sums, own, count);
}

// Where the warps of a block put what they found, each of kLanes · 4 coordinates.
template <int kWarps, int kLanes>
struct FoundByWarps {
  float4 values[kWarps][kLanes];
  float shifts[kWarps], weights[kWarps];

  __device__ __forceinline__ void put(const Found& found) {
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const float weight = over_rows<kLanes>(found.weight);
    const float4 sums =
        make_float4(over_rows<kLanes>(found.values.x), over_rows<kLanes>(found.values.y),
                    over_rows<kLanes>(found.values.z), over_rows<kLanes>(found.values.w));
    if (lane < kLanes) values[warp][lane] = sums;
    if (lane == 0) shifts[warp] = found.shift, weights[warp] = weight;
  }

  // Coordinate d of what attention gives, once all warps have put theirs.
  __device__ __forceinline__ float attended(int d) const {
    float shift = shifts[0], value = 0, denominator = 0;
#pragma unroll
    for (int w = 1; w < kWarps; ++w) shift = fmaxf(shift, shifts[w]);
#pragma unroll
    for (int w = 0; w < kWarps; ++w) {
      const float factor = fast_exp(shifts[w] - shift);
      value = fmaf(factor, reinterpret_cast<const float*>(values[w])[d], value);
      denominator = fmaf(factor, weights[w], denominator);
    }
    return value / denominator;
  }
};

}  // namespace dofla::cuda
