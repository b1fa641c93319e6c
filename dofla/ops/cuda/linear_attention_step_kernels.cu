// The recurrent form: a block takes one head of one sequence and passes over its sums once. Latency
// is all that takes time: everything that does not depend on the token is asked for before its
// inputs are there, and warps go through their features by themselves and meet once, at the end.
#include "dofla/ops/cuda/feature_parts.cuh"
#include "dofla/ops/cuda/launch.cuh"
#include "dofla/ops/cuda/linear_attention_kernels.h"
#include "dofla/ops/cuda/linear_attention_step.cuh"
#include "dofla/ops/cuda/overlap.cuh"

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

// 64 features at a time.
template <int kLanes>
using StepRound = FeatureRound<kThreads, kLanes, 64 * kLanes / kThreads>;

// From `first` on among all features, `own` on among the sums; `count` are left.
template <int kLanes>
__device__ __forceinline__ void load_round(StepRound<kLanes>& round, const StepArguments& a,
                                           int first, int64_t own, int count) {
  round.load_vectors(count, [&](int row, int column) {
    const auto four = [&](const float* rows, int64_t r) {
      return load_four(rows + r * a.width, column, a.width, a.packed);
    };
    return DirectionAndSums{four(a.z, first + row), four(a.sums.b, own + row)};
  });
  round.load_scalars(a.log_alpha + first, a.sums, own, count);
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
                                           int count, StepRound<kLanes>& round) {
  const int h = blockIdx.x, b = blockIdx.y, d = round.column();
  StepToken token;
  token.q = load_token(head_of<T>(a.q, b, h), d, a.width);
  token.k = load_token(head_of<T>(a.k, b, h / a.group), d, a.width);
  token.v = load_token(head_of<T>(a.v, b, h / a.group), d, a.width);
  token.inner_scale = a.inner_scale;
  token.key_norm = over_lanes<kLanes>(dot(token.k, token.k)) * a.norm_scale;
  token.log_count = logf(static_cast<float>(count));
  Found found;
  for (int start = 0; start < count; start += round.kCount) {
    if (start > 0) load_round(round, a, first + start, own + start, count - start);
    round.advance(token, count - start, found);
    round.store(a.sums, own + start, count - start, a.width, a.packed);
  }
  return found;
}

template <class T, int kWidth>
__global__ void __launch_bounds__(kThreads)
    linear_attention_step(const __grid_constant__ StepArguments a) {
  constexpr int kLanes = kWidth / 4;
  __shared__ FoundByWarps<kWarps, kLanes> by_warps;
  const int h = blockIdx.x, b = blockIdx.y;
  const int first = a.features.first[h], count = a.features.first[h + 1] - first;
  const int64_t own = static_cast<int64_t>(b) * a.total + first;

  // Of the kernels in a chain only this one writes these sums: they can be read before its inputs
  // are there.
  let_next_start();
  StepRound<kLanes> round;
  load_round(round, a, first, own, count);
  wait_for_inputs();
  by_warps.put(pass_over<T, kLanes>(a, first, own, count, round));
  __syncthreads();
  const int d = threadIdx.x;
  if (d < a.width) head_of<T>(a.out, b, h)[d] = from_float<T>(by_warps.attended(d));
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
  const FeatureScales scales = feature_scales(s.width, features.subtract_norm);
  a.inner_scale = scales.inner, a.norm_scale = scales.norm;
  a.packed = s.width % 4 == 0 && aligned_to_packs(features.z, sums.b);
  return s.element == Element::kF32 ? launch_step<float>(s, a, overlapped, stream)
                                    : launch_step<__nv_bfloat16>(s, a, overlapped, stream);
}

}  // namespace dofla::cuda
