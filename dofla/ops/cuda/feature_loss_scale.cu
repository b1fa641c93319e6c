// The first running scale of the l2 loss: the largest logit of a sample of a sequence's pairs.
// Without it every block would compute its first tile twice, once to find a scale.
#include "dofla/ops/cuda/feature_loss_log_features.cuh"
#include "dofla/ops/cuda/launch.cuh"

namespace dofla::cuda::feature_pairs {
namespace {

// One block a head and sequence: 64 queries and 64 keys, evenly apart.
template <int kParts, int kWidth>
__global__ __launch_bounds__(kFactorThreads) void some_logits_kernel(
    const __grid_constant__ Plan plan, const __grid_constant__ Workspace work) {
  using Rows = LogFeatures<kParts, kWidth>;
  __shared__ float largest[kFactorThreads / 32];
  const int h = blockIdx.x, b = blockIdx.y;
  const Rows queries(plan, work, 0, h, b, 0.0f), keys(plan, work, 1, h, b, 0.0f);
  const int rows = min(kTile, plan.tokens), step = plan.tokens / rows;
  queries.fetch_rows(0, 0, rows, step);
  keys.fetch_rows(1, 0, rows, step);
  commit_copies();
  wait_for_copies<0>();
  __syncthreads();
  float products[8][4] = {};
  multiply_rows<kParts, kParts, Rows::kWidthTiles>(
      products, TileParts{0, Rows::kPartBytes}, 16 * queries.warp,
      TileParts{Rows::kRows, Rows::kPartBytes}, 0, sideways(), plan.width16());
  const float* rest = work.rest == nullptr ? nullptr : work.rest + queries.peak_row;
  float top = kNothing;
#pragma unroll
  for (int n = 0; n < 8; ++n)
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      const int query = 16 * queries.warp + queries.lane / 4 + e / 2 * 8;
      const int key = 8 * n + queries.lane % 4 * 2 + e % 2;
      if (query < rows && key < rows && (!plan.causal || key <= query) &&
          (rest == nullptr || rest[query * step] < plan.padded_rest))
        top = fmaxf(top, products[n][e]);
    }
#pragma unroll
  for (int lanes = 16; lanes > 0; lanes /= 2)
    top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, lanes));
  if (queries.lane == 0) largest[queries.warp] = top;
  __syncthreads();
  if (threadIdx.x != 0) return;
  for (int w = 1; w < kFactorThreads / 32; ++w) top = fmaxf(top, largest[w]);
  work.some_logits[b * plan.heads + h] = top * kLog2E * rsqrtf(static_cast<float>(plan.width));
}

}  // namespace

cudaError_t find_some_logits(const Plan& plan, const Workspace& work, cudaStream_t stream) {
  const dim3 grid(static_cast<unsigned>(plan.heads), static_cast<unsigned>(plan.batch));
  return with_tiling(plan, [&](auto parts, auto width) {
    constexpr int kParts = decltype(parts)::value, kWidth = decltype(width)::value;
    return launch(some_logits_kernel<kParts, kWidth>, grid, kFactorThreads,
                  LogFeatures<kParts, kWidth>::kSharedBytes, stream, plan, work);
  });
}

}  // namespace dofla::cuda::feature_pairs
