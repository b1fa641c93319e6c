// The balance of every feature: how far it is below the peak of the query that is nearest to it
// (docs/kernels.md, "Balancing").
#include <algorithm>

#include "dofla/ops/cuda/feature_loss_log_features.cuh"
#include "dofla/ops/cuda/launch.cuh"

namespace dofla::cuda::feature_pairs {
namespace {

constexpr int kSampledSequences = 8;

// One block a head and sampled sequence: how far each feature is below the peak of the nearest of
// 64 queries.
template <int kParts, int kWidth>
__global__ __launch_bounds__(kFactorThreads) void balance_kernel(
    const __grid_constant__ Plan plan, const __grid_constant__ Workspace work) {
  const int h = blockIdx.x, b = blockIdx.y * plan.batch / gridDim.y;
  const LogFeatures<kParts, kWidth> block(plan, work, 0, h, b, 0.0f);
  const HeadPlan& head = block.head;
  const int rows = min(kTile, plan.tokens), step = plan.tokens / rows;
  const int last = (head.padded - 1) / kTile;
  float top[2] = {kNothing, kNothing};
  block.fetch_rows(0, 0, rows, step);
  for (int pass = 0; pass < 2; ++pass) {  // first the peaks, then the distances to them
    for (int chunk = 0; chunk <= last; ++chunk) {
      if (pass + chunk > 0) __syncthreads();
      block.fetch_features(chunk);
      commit_copies();
      wait_for_copies<0>();
      __syncthreads();
      const LogTile logs = block.log_features(0, chunk);
      float below[4][4];
#pragma unroll
      for (int i = 0; i < 16; ++i) below[i / 4][i % 4] = kInfinity;
      block.for_each(chunk, rows, [&](int q, int r, int, int) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          if (pass == 0) top[r] = fmaxf(top[r], logs.log[q][r][i]);
          below[q][i] = fminf(below[q][i], top[r] - logs.log[q][r][i]);
        }
      });
      if (pass == 0) continue;
#pragma unroll
      for (int i = 0; i < 16; ++i) {
        const float least = -column_max(-below[i / 4][i % 4]);
        const int m = chunk * kTile + i / 4 * 16 + 4 * (block.lane % 4) + i % 4;
        // Numbers that are not negative are ordered as their bits are.
        if (block.lane < 4 && m < head.padded)
          atomicMin(reinterpret_cast<int*>(work.balance + head.padded_first + m),
                    __float_as_int(least));
      }
    }
    if (pass == 0)
      for (int r = 0; r < 2; ++r) top[r] = quad_max(top[r]);
  }
}

}  // namespace

cudaError_t find_balance(const Plan& plan, const Workspace& work, cudaStream_t stream) {
  const dim3 grid(static_cast<unsigned>(plan.heads),
                  static_cast<unsigned>(std::min(plan.batch, kSampledSequences)));
  return with_tiling(plan, [&](auto parts, auto width) {
    constexpr int kParts = decltype(parts)::value, kWidth = decltype(width)::value;
    return launch(balance_kernel<kParts, kWidth>, grid, kFactorThreads,
                  LogFeatures<kParts, kWidth>::kSharedBytes, stream, plan, work);
  });
}

}  // namespace dofla::cuda::feature_pairs
