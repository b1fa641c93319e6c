#include <algorithm>
#include <cmath>

#include "dofla/ops/cuda/hybrid_attention_kernels.h"
#include "dofla/ops/cuda/hybrid_attention_step.cuh"
#include "dofla/ops/cuda/launch.cuh"

namespace dofla::cuda {
namespace {

template <class T, int kWidth>
__global__ void __launch_bounds__(kHybridThreads)
    hybrid_attention_step(const __grid_constant__ HybridStepArguments a) {
  using Step = HybridStep<T, kWidth>;
  constexpr int kLanes = Step::kLanes;
  __shared__ FoundByWarps<kHybridWarps, kLanes> by_warps[2];
  __shared__ KeyTotals key_totals[2];
  const int b = blockIdx.y, key_head = blockIdx.x;
  const int limit = a.places.limit[key_head];
  const int64_t place = int64_t{b} * a.places.total + a.places.first[key_head], past = a.past[b];
  const Step step = {a,
                     step_lists(limit, a.block),
                     static_cast<T*>(a.cache_k) + place * a.width,
                     static_cast<T*>(a.cache_v) + place * a.width,
                     b,
                     key_head,
                     limit};
  const StepLists& s = step.s;
  float* score = a.score + place;
  const int64_t times = past <= limit ? 0 : (past - limit + a.block - 1) / a.block;
  int held = static_cast<int>(past - times * a.block);
  for (int p = threadIdx.x; p < limit; p += kHybridThreads) {
    s.score[p] = p < held ? score[p] : 0;
    s.attended[p] = 0;
  }
  if (held == limit) {
    step.make_room();
    held -= a.block;
  }
  __syncthreads();
  step.append(held++);
  __syncthreads();

  const bool any_left = a.has_features && past >= limit;
  for (int i = 0; i < a.group; ++i) {
    const int head = key_head * a.group + i, buffer = i % 2;
    float* logits = s.logits + buffer * limit;
    const float4 q = load_token(head_of<T>(a.q, b, head), Step::column(), a.width);
    Found found;
    // The norm that the features leave out, added to the keys instead: the ratio is the same.
    const float norm = over_lanes<kLanes>(dot(q, q)) * a.norm_scale;
    step.look_at_keys(q, any_left ? norm : 0.0f, held, logits, found);
    const float weight = over_rows<kLanes>(found.weight);
    if (threadIdx.x % 32 == 0) key_totals[buffer][threadIdx.x / 32] = {found.shift, weight};
    if (any_left) step.look_at_state(head, q, found);
    by_warps[buffer].put(found);
    __syncthreads();  // of two buffers one is still read while the other is written
    const int d = threadIdx.x;
    if (d < a.width) head_of<T>(a.out, b, head)[d] = from_float<T>(by_warps[buffer].attended(d));
    add_attended(key_totals[buffer], logits, held, s.attended);
  }
  if (!a.by_score) return;
  for (int p = threadIdx.x; p < held; p += kHybridThreads)
    score[p] = fmaf(a.decay, s.score[p], s.attended[p]);
}

}  // namespace

cudaError_t launch_hybrid_attention_step(const LinearAttentionShape& s,
                                         const LinearAttentionFeatures& features,
                                         const ExactCache& cache, const int64_t* past,
                                         const HeadRows& q, const HeadRows& k, const HeadRows& v,
                                         const LinearAttentionSums& sums, const HeadRowsOut& out,
                                         cudaStream_t stream) {
  if (s.tokens != 1 || s.key_heads < 1 || s.key_heads > kMostKeyHeads || s.heads % s.key_heads != 0)
    return cudaErrorInvalidValue;
  HybridStepArguments a = {};
  a.has_features = features.counts != nullptr;
  if (a.has_features) {
    const FeatureParts f = feature_parts(s, features);
    if (!f.valid) return cudaErrorInvalidValue;
    a.features = f.table;
    a.total = static_cast<int>(f.own);
    const FeatureScales scales = feature_scales(s.width, features.subtract_norm);
    a.inner_scale = scales.inner, a.norm_scale = scales.norm;
  }
  a.q = q, a.k = k, a.v = v, a.out = out, a.past = past;
  a.cache_k = cache.k, a.cache_v = cache.v, a.score = cache.score;
  a.z = features.z, a.log_alpha = features.log_alpha;
  a.u = features.u, a.norm_weight = features.norm_weight;
  a.sums = sums;
  a.group = static_cast<int>(s.heads / s.key_heads), a.width = static_cast<int>(s.width);
  a.places = cache.places, a.block = static_cast<int>(cache.block);
  a.sinks = static_cast<int>(cache.sinks), a.recent = static_cast<int>(cache.recent);
  a.decay = static_cast<float>(cache.decay), a.by_score = cache.by_score;
  int most = 0;
  for (int64_t h = 0; h < s.key_heads; ++h) most = std::max(most, a.places.limit[h]);
  a.scale = static_cast<float>(1 / std::sqrt(static_cast<double>(s.width)));
  a.packed = s.width % 4 == 0 && aligned_to_packs(features.z, features.u, sums.b);
  a.packed_cache =
      s.width % (s.element == Element::kF32 ? 4 : 8) == 0 && aligned_to_packs(cache.k, cache.v);
  const dim3 grid(static_cast<unsigned>(s.key_heads), static_cast<unsigned>(s.batch));
  return with_width(s.width, [&](auto width) {
    constexpr int kWidth = decltype(width)::value;
    const auto kernel = s.element == Element::kF32 ? hybrid_attention_step<float, kWidth>
                                                   : hybrid_attention_step<__nv_bfloat16, kWidth>;
    return launch(kernel, grid, kHybridThreads, list_bytes(most, a.block), stream, a);
  });
}

}  // namespace dofla::cuda
