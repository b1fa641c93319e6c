// The balance of every feature: what makes the log features of queries and keys alike, on average
// (docs/kernels.md, "Balancing").
#include <algorithm>

#include "dofla/ops/cuda/feature_loss_log_features.cuh"
#include "dofla/ops/cuda/launch.cuh"

namespace dofla::cuda::feature_pairs {
namespace {

constexpr float kQueryShare = -0.75f, kKeyShare = 0.25f;

// One block a head, sampled sequence and side: the mean log feature of 64 queries or keys, times
// the share of that side in the balance.
template <int kParts, int kWidth>
__global__ __launch_bounds__(kFactorThreads) void mean_logs_kernel(
    const __grid_constant__ Plan plan, const __grid_constant__ Workspace work) {
  __shared__ float of_warp[kFactorThreads / 32][kTile];
  const int h = blockIdx.x, side = blockIdx.z, b = blockIdx.y * plan.batch / gridDim.y;
  const LogFeatures<kParts, kWidth> block(plan, work, side, h, b, 0.0f);
  const HeadPlan& head = block.head;
  const int rows = min(kTile, plan.tokens), step = plan.tokens / rows;
  float* to = work.balance_parts +
              int64_t{side * static_cast<int>(gridDim.y) + static_cast<int>(blockIdx.y)} *
                  plan.padded_total +
              head.padded_first;
  const float share = (side == 0 ? kQueryShare : kKeyShare) / (rows * gridDim.y);
  block.fetch_rows(0, 0, rows, step);
  for (int chunk = 0; chunk <= (head.padded - 1) / kTile; ++chunk) {
    if (chunk > 0) __syncthreads();
    block.fetch_features(chunk);
    commit_copies();
    wait_for_copies<0>();
    __syncthreads();
    const LogTile logs = block.log_features(0, chunk);
    float sums[4][4] = {};
    block.for_each(chunk, rows, [&](int q, int r, int, int) {
#pragma unroll
      for (int i = 0; i < 4; ++i) sums[q][i] += logs.log[q][r][i];
    });
#pragma unroll
    for (int i = 0; i < 16; ++i) {
      float sum = sums[i / 4][i % 4];
#pragma unroll
      for (int lanes = 4; lanes < 32; lanes *= 2) sum += __shfl_xor_sync(0xffffffffu, sum, lanes);
      if (block.lane < 4) of_warp[block.warp][i / 4 * 16 + 4 * block.lane + i % 4] = sum;
    }
    __syncthreads();
    const int m = chunk * kTile + threadIdx.x;
    if (threadIdx.x >= kTile || m >= head.padded) continue;
    float sum = 0;
    for (int w = 0; w < kFactorThreads / 32; ++w) sum += of_warp[w][threadIdx.x];
    to[m] = share * sum;
  }
}

// In a fixed order, so that the same inputs give the same bits. Padding has infinite log features,
// and no balance.
__global__ void sum_balance_kernel(Plan plan, Workspace work, int parts) {
  const int m = blockIdx.x * blockDim.x + threadIdx.x;
  if (m >= plan.padded_total) return;
  float sum = 0;
  for (int part = 0; part < parts; ++part)
    sum += work.balance_parts[int64_t{part} * plan.padded_total + m];
  work.balance[m] = isfinite(sum) ? sum : 0.0f;
}

}  // namespace

cudaError_t find_balance(const Plan& plan, const Workspace& work, cudaStream_t stream) {
  const int sequences = std::min(plan.batch, kBalanceSequences);
  const dim3 grid(static_cast<unsigned>(plan.heads), static_cast<unsigned>(sequences), 2);
  const cudaError_t status = with_tiling(plan, [&](auto parts, auto width) {
    constexpr int kParts = decltype(parts)::value, kWidth = decltype(width)::value;
    return launch(mean_logs_kernel<kParts, kWidth>, grid, kFactorThreads,
                  LogFeatures<kParts, kWidth>::kSharedBytes, stream, plan, work);
  });
  if (status != cudaSuccess) return status;
  return launch(sum_balance_kernel, dim3((static_cast<unsigned>(plan.padded_total) + 127) / 128),
                128, 0, stream, plan, work, 2 * sequences);
}

}  // namespace dofla::cuda::feature_pairs
