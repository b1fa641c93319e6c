// The first launches: the plan of heads and work items, and directions, q and k as bf16 parts.
#include "dofla/ops/cuda/feature_loss_plan.h"
#include "dofla/ops/cuda/launch.cuh"

namespace dofla::cuda::feature_pairs {
namespace {

constexpr int kSplitThreads = 256;

struct Counts {
  int count[kMostHeads];
};

// Heads of many features first: the long items start early and the short ones fill the gaps.
__global__ void plan_kernel(Plan plan, Counts counts, Workspace work) {
  const int head = threadIdx.x;
  if (head < 2) work.next_item[head] = 0;
  if (head >= plan.heads) return;
  const auto make = [&](int h) {
    const int count = counts.count[h], padded = (count + 15) / 16 * 16;
    return HeadPlan{count, 0, padded, 0, count > kTile ? plan.wide_window : kTile, 0};
  };
  HeadPlan mine = make(head);
  const bool wide = mine.count > kTile;
  mine.first_item = wide ? plan.narrow_items : 0;
  for (int h = 0; h < plan.heads; ++h) {
    const HeadPlan other = make(h);
    if (h < head) {
      mine.first += other.count;
      mine.padded_first += other.padded;
    }
    const bool before = other.count > mine.count || (other.count == mine.count && h < head);
    if (before && (other.count > kTile) == wide)
      mine.first_item += other.windows() * plan.batch * plan.pairs;
  }
  work.heads[head] = mine;
}

// One block a padded feature.
__global__ void split_features_kernel(Plan plan, Workspace work, FeatureLossInputs inputs) {
  const int row = blockIdx.x;
  int h = 0;
  while (row >= work.heads[h].padded_first + work.heads[h].padded) ++h;
  const HeadPlan head = work.heads[h];
  const int m = row - head.padded_first;
  const bool real = m < head.count;
  const int64_t part_step = int64_t{plan.padded_total} * plan.kernel_width;
  const int own = plan.own_feature(work.heads, h, m);
  for (int side = 0; side < (plan.untied ? 2 : 1); ++side) {
    const float* from = plan.untied && side == 0 ? inputs.u + int64_t{head.first + m} * plan.width
                                                 : inputs.z + int64_t{own} * plan.width;
    for (int d = threadIdx.x; d < plan.kernel_width; d += blockDim.x) {
      float rest = real && d < plan.width ? from[d] : 0.0f;
      for (int p = 0; p < kFeatureParts; ++p) {
        const __nv_bfloat16 part = __float2bfloat16_rn(rest);
        work.side[side].directions[p * part_step + int64_t{row} * plan.kernel_width + d] = part;
        rest -= __bfloat162float(part);
      }
    }
  }
  if (threadIdx.x != 0) return;
  work.offsets[row] =
      real ? static_cast<float>(0.5 * (inputs.log_alpha[own] - log(double(head.count))) *
                                1.4426950408889634)
           : -kInfinity;
}

// To [part, B, X, T, kernel width].
template <class T>
__global__ void split_rows_kernel(Plan plan, HeadRows x, int x_heads, __nv_bfloat16* to) {
  const int64_t at = int64_t{blockIdx.x} * kSplitThreads + threadIdx.x;
  const int64_t all = int64_t{plan.batch} * x_heads * plan.tokens * plan.kernel_width;
  if (at >= all) return;
  const int64_t row = at / plan.kernel_width, head = row / plan.tokens;
  const int d = static_cast<int>(at % plan.kernel_width);
  const T* from = static_cast<const T*>(x.data) + head / x_heads * x.batch_step +
                  head % x_heads * x.head_step + row % plan.tokens * x.token_step;
  float rest = d < plan.width ? static_cast<float>(from[d]) : 0.0f;
  for (int p = 0; p < plan.parts; ++p) {
    const __nv_bfloat16 part = __float2bfloat16_rn(rest);
    to[p * all + at] = part;
    rest -= __bfloat162float(part);
  }
}

cudaError_t split_rows(const Plan& plan, const Workspace& work, const FeatureLossInputs& inputs,
                       cudaStream_t stream) {
  for (int i = 0; i < 2; ++i) {
    const int x_heads = work.side[i].x_heads;
    const int64_t rows = int64_t{plan.batch} * x_heads * plan.tokens;
    const auto blocks =
        static_cast<unsigned>((rows * plan.kernel_width + kSplitThreads - 1) / kSplitThreads);
    const auto kernel =
        plan.parts == 1 ? split_rows_kernel<__nv_bfloat16> : split_rows_kernel<float>;
    const cudaError_t status = launch(kernel, dim3(blocks), kSplitThreads, 0, stream, plan,
                                      i == 0 ? inputs.q : inputs.k, x_heads, work.x_parts[i]);
    if (status != cudaSuccess) return status;
  }
  return cudaSuccess;
}

}  // namespace

cudaError_t write_plan(const Plan& plan, const int64_t* counts, const Workspace& work,
                       cudaStream_t stream) {
  Counts by_value{};
  for (int h = 0; h < plan.heads; ++h)
    by_value.count[h] = static_cast<int>(counts[h / plan.sharing]);
  return launch(plan_kernel, dim3(1), kMostHeads, 0, stream, plan, by_value, work);
}

cudaError_t split_inputs(const Plan& plan, const Workspace& work, const FeatureLossInputs& inputs,
                         bool copy_inputs, cudaStream_t stream) {
  const cudaError_t status =
      launch(split_features_kernel, dim3(static_cast<unsigned>(plan.padded_total)), 64, 0, stream,
             plan, work, inputs);
  return status == cudaSuccess && copy_inputs ? split_rows(plan, work, inputs, stream) : status;
}

}  // namespace dofla::cuda::feature_pairs
