// The recurrent form: a block takes one state of one sequence, that of a query head or, where
// features are untied, of a key head with all its query heads, and passes over its sums once.
// Latency is all that takes time: everything that does not depend on the token is asked for before
// its inputs are there, and warps go through their features by themselves and meet once, at the
// end.
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
  const float *u, *norm_weight;  // of untied features, or null
  LinearAttentionSums sums;
  int group, width, total;
  float inner_scale, norm_scale;
  bool packed;  // rows of z, u and b come in float4
};

// The state of a block: `count` features, from `first` on among all, `own` on among the sums.
struct BlockState {
  int head, first, count;  // its first query head
  int64_t own;
};

// What the state needs of a token: everything but a query.
template <class T, int kLanes>
__device__ __forceinline__ StepToken key_of_token(const StepArguments& a, const BlockState& s,
                                                  int d) {
  const int b = blockIdx.y, key_head = s.head / a.group;
  StepToken token;
  token.k = load_token(head_of<T>(a.k, b, key_head), d, a.width);
  token.v = load_token(head_of<T>(a.v, b, key_head), d, a.width);
  token.inner_scale = a.inner_scale;
  const float norm_scale =
      a.norm_weight == nullptr ? a.norm_scale : a.norm_scale * a.norm_weight[key_head];
  token.key_norm = over_lanes<kLanes>(dot(token.k, token.k)) * norm_scale;
  token.log_count = logf(static_cast<float>(s.count));
  return token;
}

template <class T, int kLanes>
__device__ __forceinline__ void write_attended(const StepArguments& a, int head,
                                               const FoundByWarps<kWarps, kLanes>& by_warps) {
  const int d = threadIdx.x;
  if (d < a.width) head_of<T>(a.out, blockIdx.y, head)[d] = from_float<T>(by_warps.attended(d));
}

// A warp goes through its features by itself: they move on, and the query looks at them.
template <class T, int kLanes>
__device__ __forceinline__ void attend(const StepArguments& a, const BlockState& s,
                                       StepRound<kThreads, kLanes>& round,
                                       FoundByWarps<kWarps, kLanes>& by_warps) {
  StepToken token = key_of_token<T, kLanes>(a, s, round.column());
  token.q = load_token(head_of<T>(a.q, blockIdx.y, s.head), round.column(), a.width);
  Found found;
  for (int start = 0; start < s.count; start += round.kCount) {
    if (start > 0) load_round(round, a, s.first + start, s.own + start, s.count - start);
    round.advance(token);
    round.look(token, s.count - start, found);
    round.store(a.sums, s.own + start, s.count - start, a.width, a.packed);
  }
  by_warps.put(found);
  __syncthreads();
  write_attended<T, kLanes>(a, s.head, by_warps);
}

// The same for all query heads that share the state: first it moves on, then they look, one after
// the other. Features of several rounds are loaded again for each of them.
template <class T, int kLanes>
__device__ __forceinline__ void attend_group(const StepArguments& a, const BlockState& s,
                                             StepRound<kThreads, kLanes>& round,
                                             FoundByWarps<kWarps, kLanes> (&by_warps)[2]) {
  StepToken token = key_of_token<T, kLanes>(a, s, round.column());
  const bool again = s.count > round.kCount;
  for (int start = 0; start < s.count; start += round.kCount) {
    if (start > 0) load_round(round, a, s.first + start, s.own + start, s.count - start);
    round.advance(token);
    round.store(a.sums, s.own + start, s.count - start, a.width, a.packed);
  }
  if (again) __syncthreads();  // one thread of a feature has written what all of them read
  for (int i = 0; i < a.features.sharing; ++i) {
    const int head = s.head + i;
    token.q = load_token(head_of<T>(a.q, blockIdx.y, head), round.column(), a.width);
    const float* directions = a.u + int64_t{a.features.first[head]} * a.width;
    Found found;
    for (int start = 0; start < s.count; start += round.kCount) {
      if (again) load_round(round, a, s.first + start, s.own + start, s.count - start);
      const auto direction = [&](int held) {
        const int row = start + round.row(held);
        return row < s.count ? load_four(directions + int64_t{row} * a.width, round.column(),
                                         a.width, a.packed)
                             : float4{};
      };
      round.look(token, s.count - start, direction, found);
    }
    by_warps[i % 2].put(found);
    __syncthreads();  // of the two buffers one is still read while the other is written
    write_attended<T, kLanes>(a, head, by_warps[i % 2]);
  }
}

template <class T, int kWidth, bool kUntied>
__global__ void __launch_bounds__(kThreads)
    linear_attention_step(const __grid_constant__ StepArguments a) {
  constexpr int kLanes = kWidth / 4;
  __shared__ FoundByWarps<kWarps, kLanes> by_warps[kUntied ? 2 : 1];
  const int head = blockIdx.x * a.features.sharing;
  const int first = a.features.first_of_state(head);
  const BlockState s = {head, first, a.features.first[head + 1] - a.features.first[head],
                        static_cast<int64_t>(blockIdx.y) * a.total + first};

  // Of the kernels in a chain only this one writes these sums: they can be read before its inputs
  // are there.
  let_next_start();
  StepRound<kThreads, kLanes> round;
  load_round(round, a, s.first, s.own, s.count);
  wait_for_inputs();
  if constexpr (kUntied)
    attend_group<T, kLanes>(a, s, round, by_warps);
  else
    attend<T, kLanes>(a, s, round, by_warps[0]);
}

template <class T>
cudaError_t launch_step(const LinearAttentionShape& s, const StepArguments& a, bool overlapped,
                        cudaStream_t stream) {
  return with_width(s.width, [&](auto width) {
    constexpr int kWidth = decltype(width)::value;
    const dim3 grid(static_cast<unsigned>(s.heads / a.features.sharing),
                    static_cast<unsigned>(s.batch));
    const auto kernel = a.u == nullptr ? linear_attention_step<T, kWidth, false>
                                       : linear_attention_step<T, kWidth, true>;
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
  const FeatureParts f = feature_parts(s, features);
  if (!f.valid || s.tokens != 1) return cudaErrorInvalidValue;
  StepArguments a = {};
  a.q = q, a.k = k, a.v = v, a.out = out;
  a.features = f.table;
  a.z = features.z, a.log_alpha = features.log_alpha;
  a.u = features.u, a.norm_weight = features.norm_weight;
  a.sums = sums;
  a.group = static_cast<int>(s.heads / s.key_heads);
  a.width = static_cast<int>(s.width), a.total = static_cast<int>(f.own);
  const FeatureScales scales = feature_scales(s.width, features.subtract_norm);
  a.inner_scale = scales.inner, a.norm_scale = scales.norm;
  a.packed = s.width % 4 == 0 && aligned_to_packs(features.z, features.u, sums.b);
  return s.element == Element::kF32 ? launch_step<float>(s, a, overlapped, stream)
                                    : launch_step<__nv_bfloat16>(s, a, overlapped, stream);
}

}  // namespace dofla::cuda
