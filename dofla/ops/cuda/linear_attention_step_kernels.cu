// The recurrent form: a block takes one head of one sequence and passes over its sums once. Latency
// is all that takes time: everything that does not depend on the token is asked for before its
// inputs are there, and warps go through their features by themselves and meet once, at the end.
#include <cmath>

#include "dofla/ops/cuda/feature_parts.cuh"
#include "dofla/ops/cuda/launch.cuh"
#include "dofla/ops/cuda/linear_attention_kernels.h"
#include "dofla/ops/cuda/overlap.cuh"
#include "dofla/ops/cuda/tile_mma.cuh"

namespace dofla::cuda {
namespace {

constexpr int kThreads = 256, kWarps = kThreads / 32;

struct StepArguments {
  HeadRows q, k, v;
  HeadRowsOut out;
  FeatureTable features;
  const float *z, *log_alpha;
  LinearAttentionSums sums;
  int group, width, total;
  float inner_scale, norm_scale;
  bool packed;  // rows of z and b come in float4
};

// Four coordinates of a row; those past its width are 0.
__device__ __forceinline__ float4 load_four(const float* row, int d, int width, bool packed) {
  if (packed) return d < width ? *reinterpret_cast<const float4*>(row + d) : float4{};
  return make_float4(d < width ? row[d] : 0.0f, d + 1 < width ? row[d + 1] : 0.0f,
                     d + 2 < width ? row[d + 2] : 0.0f, d + 3 < width ? row[d + 3] : 0.0f);
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

__device__ __forceinline__ float dot(float4 x, float4 y) {
  return fmaf(x.x, y.x, fmaf(x.y, y.y, fmaf(x.z, y.z, x.w * y.w)));
}

// Features of a head in groups of 64, kLanes threads a feature: what a thread has of a group.
template <int kLanes>
struct FeatureGroup {
  static constexpr int kRows = kThreads / kLanes, kHeld = 64 / kRows;
  float4 z[kHeld], sums[kHeld];
  float log_alpha[kHeld], log_max[kHeld], a[kHeld];

  static __device__ int row(int i) { return threadIdx.x / kLanes + i * kRows; }
  static __device__ int column() { return threadIdx.x % kLanes * 4; }

  // From `first` on among all features, `own` on among the sums; `count` are left.
  __device__ __forceinline__ void load(const StepArguments& from, int first, int64_t own,
                                       int count) {
#pragma unroll
    for (int i = 0; i < kHeld; ++i) {
      const int m = row(i);
      const bool inside = m < count;
      const auto four = [&](const float* rows, int64_t r) {
        return inside ? load_four(rows + r * from.width, column(), from.width, from.packed)
                      : float4{};
      };
      z[i] = four(from.z, first + m);
      sums[i] = four(from.sums.b, own + m);
      log_alpha[i] = inside ? from.log_alpha[first + m] : 0;
      log_max[i] = inside ? from.sums.log_max[own + m] : 0;
      a[i] = inside ? from.sums.a[own + m] : 0;
    }
  }

  // Of the old sums times decay plus key times v, feature by feature.
  __device__ __forceinline__ void advance(int i, float log_key, float4 v) {
    const float peak = fmaxf(log_max[i], log_key);
    const float decay = fast_exp(log_max[i] - peak), key = fast_exp(log_key - peak);
    log_max[i] = peak;
    a[i] = fmaf(a[i], decay, key);
    sums[i] = make_float4(fmaf(sums[i].x, decay, key * v.x), fmaf(sums[i].y, decay, key * v.y),
                          fmaf(sums[i].z, decay, key * v.z), fmaf(sums[i].w, decay, key * v.w));
  }

  __device__ __forceinline__ void store(const StepArguments& to, int64_t own, int count) const {
#pragma unroll
    for (int i = 0; i < kHeld; ++i) {
      const int64_t m = own + row(i);
      if (row(i) >= count) continue;
      store_four(to.sums.b + m * to.width, column(), to.width, to.packed, sums[i]);
      if (column() != 0) continue;
      to.sums.log_max[m] = log_max[i];
      to.sums.a[m] = a[i];
    }
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

// Four numbers of a token's head.
template <class T>
__device__ __forceinline__ float4 load_token(const T* head, int d, int width) {
  const auto at = [&](int i) { return i < width ? to_float(__ldcg(head + i)) : 0.0f; };
  return make_float4(at(d), at(d + 1), at(d + 2), at(d + 3));
}

// A warp goes through its features by itself: they move on, and the query looks at them.
template <class T, int kLanes>
__device__ __forceinline__ Found pass_over(const StepArguments& a, int first, int64_t own,
                                           int count, FeatureGroup<kLanes>& group) {
  const int h = blockIdx.x, b = blockIdx.y, d = group.column();
  const float4 q = load_token(head_of<T>(a.q, b, h), d, a.width);
  const float4 k = load_token(head_of<T>(a.k, b, h / a.group), d, a.width);
  const float4 v = load_token(head_of<T>(a.v, b, h / a.group), d, a.width);
  const float log_count = logf(static_cast<float>(count));
  const float norm = over_lanes<kLanes>(dot(k, k)) * a.norm_scale;
  Found found;
  for (int start = 0; start < count; start += 64) {
    if (start > 0) group.load(a, first + start, own + start, count - start);
    float log_query[group.kHeld], most = -INFINITY;
#pragma unroll
    for (int i = 0; i < group.kHeld; ++i) {
      const float along_q = over_lanes<kLanes>(dot(group.z[i], q));
      const float along_k = over_lanes<kLanes>(dot(group.z[i], k));
      const float offset = 0.5f * (group.log_alpha[i] - log_count);
      group.advance(i, fmaf(along_k, a.inner_scale, offset - norm), v);
      log_query[i] = start + group.row(i) < count
                         ? fmaf(along_q, a.inner_scale, offset) + group.log_max[i]
                         : -INFINITY;
      most = fmaxf(most, log_query[i]);
    }
    group.store(a, own + start, count - start);
    found.rescale(fmaxf(found.shift, most_of_rows<kLanes>(most)));
#pragma unroll
    for (int i = 0; i < group.kHeld; ++i)
      if (start + group.row(i) < count)
        found.add(fast_exp(log_query[i] - found.shift), group.a[i], group.sums[i]);
  }
  return found;
}

template <class T, int kWidth>
__global__ void __launch_bounds__(kThreads)
    linear_attention_step(const __grid_constant__ StepArguments a) {
  constexpr int kLanes = kWidth / 4;
  __shared__ float4 values[kWarps][kLanes];
  __shared__ float shifts[kWarps], weights[kWarps];
  const int h = blockIdx.x, b = blockIdx.y;
  const int first = a.features.first[h], count = a.features.first[h + 1] - first;
  const int64_t own = static_cast<int64_t>(b) * a.total + first;

  // Of the kernels in a chain only this one writes these sums: they can be read before its inputs
  // are there.
  let_next_start();
  FeatureGroup<kLanes> group;
  group.load(a, first, own, count);
  wait_for_inputs();
  const Found found = pass_over<T>(a, first, own, count, group);

  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const float weight = over_rows<kLanes>(found.weight);
  const float4 sums =
      make_float4(over_rows<kLanes>(found.values.x), over_rows<kLanes>(found.values.y),
                  over_rows<kLanes>(found.values.z), over_rows<kLanes>(found.values.w));
  if (lane < kLanes) values[warp][lane] = sums;
  if (lane == 0) shifts[warp] = found.shift, weights[warp] = weight;
  __syncthreads();
  const int d = threadIdx.x;
  if (d >= a.width) return;
  float shift = shifts[0], value = 0, denominator = 0;
#pragma unroll
  for (int w = 1; w < kWarps; ++w) shift = fmaxf(shift, shifts[w]);
#pragma unroll
  for (int w = 0; w < kWarps; ++w) {
    const float factor = fast_exp(shifts[w] - shift);
    value = fmaf(factor, reinterpret_cast<const float*>(values[w])[d], value);
    denominator = fmaf(factor, weights[w], denominator);
  }
  head_of<T>(a.out, b, h)[d] = from_float<T>(value / denominator);
}

template <class T>
cudaError_t launch_step(const LinearAttentionShape& s, const StepArguments& a, bool overlapped,
                        cudaStream_t stream) {
  return with_width(s.width, [&](auto width) {
    constexpr int kWidth = decltype(width)::value;
    const dim3 grid(static_cast<unsigned>(s.heads), static_cast<unsigned>(s.batch));
    const auto kernel = linear_attention_step<T, kWidth>;
    return overlapped ? launch_overlapped(kernel, grid, kThreads, 0, stream, a)
                      : launch(kernel, grid, kThreads, 0, stream, a);
  });
}

}  // namespace

cudaError_t launch_linear_attention_step(const LinearAttentionShape& s,
                                         const LinearAttentionFeatures& features, const HeadRows& q,
                                         const HeadRows& k, const HeadRows& v,
                                         const LinearAttentionSums& sums, const HeadRowsOut& out,
                                         bool overlapped, cudaStream_t stream) {
  const FeatureParts f = feature_parts(s, features.counts);
  if (!f.valid || s.tokens != 1) return cudaErrorInvalidValue;
  StepArguments a = {};
  a.q = q, a.k = k, a.v = v, a.out = out;
  a.features = f.table;
  a.z = features.z, a.log_alpha = features.log_alpha;
  a.sums = sums;
  a.group = static_cast<int>(s.heads / s.key_heads);
  a.width = static_cast<int>(s.width), a.total = static_cast<int>(f.total);
  const double width = static_cast<double>(s.width);
  a.inner_scale = static_cast<float>(std::pow(width, -0.25));
  a.norm_scale = static_cast<float>(features.subtract_norm ? 0.5 / std::sqrt(width) : 0.0);
  a.packed = s.width % 4 == 0 && aligned_to_packs(features.z, sums.b);
  return s.element == Element::kF32 ? launch_step<float>(s, a, overlapped, stream)
                                    : launch_step<__nv_bfloat16>(s, a, overlapped, stream);
}

}  // namespace dofla::cuda
