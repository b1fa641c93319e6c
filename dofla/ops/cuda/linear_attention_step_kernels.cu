// The recurrent form: a block takes one head of one sequence and passes over its sums once. Reading
// and writing them is all that takes time, so everything that does not depend on the token's
// features is asked for before they are computed.
#include <algorithm>
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

// A number from every warp, combined in order.
template <class Combine>
__device__ __forceinline__ float over_warps(float mine, float* room, const Combine& combine) {
  if (threadIdx.x % 32 == 0) room[threadIdx.x / 32] = mine;
  __syncthreads();
  float all = room[0];
#pragma unroll
  for (int w = 1; w < kWarps; ++w) all = combine(all, room[w]);
  return all;
}

// What a feature does in this token: the old sums times decay, plus key times value; the output
// takes query times the new sums.
struct TokenFactors {
  float *decay, *key, *query;  // [M], in shared memory
};

// Rows of D numbers, kLanes threads a row: those that a thread has among 64.
template <int kLanes>
struct RowsOf {
  static constexpr int kRows = kThreads / kLanes, kHeld = 64 / kRows;
  float4 held[kHeld];

  static __device__ int row(int i) { return threadIdx.x / kLanes + i * kRows; }
  static __device__ int column() { return threadIdx.x % kLanes * 4; }

  __device__ __forceinline__ void load(const float* from, int count, int width, bool packed) {
#pragma unroll
    for (int i = 0; i < kHeld; ++i)
      held[i] = row(i) < count ? load_four(from + static_cast<int64_t>(row(i)) * width, column(),
                                           width, packed)
                               : float4{};
  }
};

// Log features of q and k into query and key. `z` holds the first 64 features.
template <int kLanes>
__device__ __forceinline__ void token_features(const StepArguments& a, int first, int count,
                                               RowsOf<kLanes> z, float4 q, float4 k,
                                               TokenFactors to) {
  const float log_count = logf(static_cast<float>(count));
  const auto over_lanes = [](float x) {
#pragma unroll
    for (int step = kLanes / 2; step > 0; step /= 2) x += __shfl_xor_sync(kWholeWarp, x, step);
    return x;
  };
  const float norm = over_lanes(dot(k, k)) * a.norm_scale;
  for (int start = 0; start < count; start += 64) {
    if (start > 0)
      z.load(a.z + static_cast<int64_t>(first + start) * a.width, count - start, a.width, a.packed);
#pragma unroll
    for (int i = 0; i < z.kHeld; ++i) {
      const int m = start + z.row(i);
      const float along_q = over_lanes(dot(z.held[i], q)), along_k = over_lanes(dot(z.held[i], k));
      if (z.column() == 0 && m < count) {
        const float offset = 0.5f * (a.log_alpha[first + m] - log_count);
        to.query[m] = along_q * a.inner_scale + offset;
        to.key[m] = along_k * a.inner_scale + offset - norm;
      }
    }
  }
}

// The head's peaks and a.
struct HeadSums {
  float *log_max, *a;      // [M]
  float held_max, held_a;  // those of feature threadIdx.x, asked for early

  __device__ HeadSums(const LinearAttentionSums& sums, int64_t own, int count)
      : log_max(sums.log_max + own), a(sums.a + own), held_max(0), held_a(0) {
    if (static_cast<int>(threadIdx.x) >= count) return;
    held_max = log_max[threadIdx.x];
    held_a = a[threadIdx.x];
  }
};

// From log features to factors; the head's peaks and a move on. Returns the denominator.
__device__ __forceinline__ float advance_peaks(const HeadSums& head, int count, TokenFactors f,
                                               float* room) {
  float most = -INFINITY, held_a = 0;
  for (int m = threadIdx.x; m < count; m += kThreads) {
    const bool held = m < kThreads;
    const float before = held ? head.held_max : head.log_max[m], peak = fmaxf(before, f.key[m]);
    f.decay[m] = fast_exp(before - peak);
    f.key[m] = fast_exp(f.key[m] - peak);
    const float a = fmaf(held ? head.held_a : head.a[m], f.decay[m], f.key[m]);
    if (held) held_a = a;
    head.a[m] = a;
    head.log_max[m] = peak;
    f.query[m] += peak;
    most = fmaxf(most, f.query[m]);
  }
  const float shift =
      over_warps(warp_max(most), room, [](float x, float y) { return fmaxf(x, y); });
  float sum = 0;
  for (int m = threadIdx.x; m < count; m += kThreads) {
    f.query[m] = fast_exp(f.query[m] - shift);
    sum = fmaf(f.query[m], m < kThreads ? held_a : head.a[m], sum);
  }
  return over_warps(warp_sum(sum), room + kWarps, [](float x, float y) { return x + y; });
}

template <class T, int kWidth>
__global__ void __launch_bounds__(kThreads)
    linear_attention_step(const __grid_constant__ StepArguments a) {
  constexpr int kLanes = kWidth / 4;
  using Rows = RowsOf<kLanes>;
  const int h = blockIdx.x, b = blockIdx.y;
  const int first = a.features.first[h], count = a.features.first[h + 1] - first;
  const int64_t own = static_cast<int64_t>(b) * a.total + first;
  const int d = Rows::column();
  float* memory = reinterpret_cast<float*>(shared_memory());
  float* room = memory;                  // [2 kWarps]
  float* partial = memory + 2 * kWarps;  // [kWarps, kWidth]
  TokenFactors f;
  f.decay = partial + kWarps * kWidth;
  f.key = f.decay + count;
  f.query = f.key + count;

  // Of the kernels in a chain only this one writes these sums: they can be read before its inputs
  // are there.
  let_next_start();
  float* sums = a.sums.b + own * a.width;
  Rows first_z, first_sums;
  first_z.load(a.z + static_cast<int64_t>(first) * a.width, count, a.width, a.packed);
  first_sums.load(sums, count, a.width, a.packed);
  const HeadSums head(a.sums, own, count);
  wait_for_inputs();
  const auto four = [&](const T* head) {
    return make_float4(d < a.width ? to_float(head[d]) : 0.0f,
                       d + 1 < a.width ? to_float(head[d + 1]) : 0.0f,
                       d + 2 < a.width ? to_float(head[d + 2]) : 0.0f,
                       d + 3 < a.width ? to_float(head[d + 3]) : 0.0f);
  };
  const float4 v = four(head_of<T>(a.v, b, h / a.group));
  token_features<kLanes>(a, first, count, first_z, four(head_of<T>(a.q, b, h)),
                         four(head_of<T>(a.k, b, h / a.group)), f);
  __syncthreads();
  const float denominator = advance_peaks(head, count, f, room);

  float4 total = {};
  const auto pass = [&](int m, float4 old) {
    const float decay = f.decay[m], key = f.key[m], query = f.query[m];
    const float4 fresh = make_float4(fmaf(old.x, decay, key * v.x), fmaf(old.y, decay, key * v.y),
                                     fmaf(old.z, decay, key * v.z), fmaf(old.w, decay, key * v.w));
    store_four(sums + static_cast<int64_t>(m) * a.width, d, a.width, a.packed, fresh);
    total.x = fmaf(query, fresh.x, total.x);
    total.y = fmaf(query, fresh.y, total.y);
    total.z = fmaf(query, fresh.z, total.z);
    total.w = fmaf(query, fresh.w, total.w);
  };
#pragma unroll
  for (int i = 0; i < Rows::kHeld; ++i)
    if (Rows::row(i) < count) pass(Rows::row(i), first_sums.held[i]);
  for (int m = Rows::row(Rows::kHeld); m < count; m += Rows::kRows)
    pass(m, load_four(sums + static_cast<int64_t>(m) * a.width, d, a.width, a.packed));

    // Rows of a warp, then warps.
#pragma unroll
  for (int step = kLanes; step < 32; step *= 2) {
    total.x += __shfl_xor_sync(kWholeWarp, total.x, step);
    total.y += __shfl_xor_sync(kWholeWarp, total.y, step);
    total.z += __shfl_xor_sync(kWholeWarp, total.z, step);
    total.w += __shfl_xor_sync(kWholeWarp, total.w, step);
  }
  if (threadIdx.x % 32 < kLanes)
    *reinterpret_cast<float4*>(partial + threadIdx.x / 32 * kWidth + d) = total;
  __syncthreads();
  if (static_cast<int>(threadIdx.x) < a.width) {
    float value = 0;
#pragma unroll
    for (int w = 0; w < kWarps; ++w) value += partial[w * kWidth + threadIdx.x];
    head_of<T>(a.out, b, h)[threadIdx.x] = from_float<T>(value / denominator);
  }
}

template <class T>
cudaError_t launch_step(const LinearAttentionShape& s, const StepArguments& a, int64_t most,
                        bool overlapped, cudaStream_t stream) {
  return with_width(s.width, [&](auto width) {
    constexpr int kWidth = decltype(width)::value;
    const size_t floats = 2 * kWarps + kWarps * kWidth + 3 * static_cast<size_t>(most);
    const dim3 grid(static_cast<unsigned>(s.heads), static_cast<unsigned>(s.batch));
    const size_t bytes = floats * sizeof(float);
    const auto kernel = linear_attention_step<T, kWidth>;
    return overlapped ? launch_overlapped(kernel, grid, kThreads, bytes, stream, a)
                      : launch(kernel, grid, kThreads, bytes, stream, a);
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
  const int64_t most = *std::max_element(features.counts, features.counts + s.heads);
  return s.element == Element::kF32 ? launch_step<float>(s, a, most, overlapped, stream)
                                    : launch_step<__nv_bfloat16>(s, a, most, overlapped, stream);
}

}  // namespace dofla::cuda
