// First of all: the plan of heads and items, and z, q and k in bf16 parts.
#include "dofla/ops/cuda/feature_loss_plan.h"
#include "dofla/ops/cuda/launch.cuh"

namespace dofla::cuda::feature_pairs {
namespace {

constexpr int kSplitThreads = 256;
constexpr float kInfinity = __builtin_huge_valf();

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
__global__ void split_features_kernel(Plan plan, Workspace work, const float* z,
                                      const float* log_alpha) {
  const int row = blockIdx.x;
  int h = 0;
  while (row >= work.heads[h].padded_first + work.heads[h].padded) ++h;
  const HeadPlan head = work.heads[h];
  const int m = row - head.padded_first;
  const bool real = m < head.count;
  const int64_t part_step = int64_t{plan.padded_total} * plan.kernel_width;
  for (int d = threadIdx.x; d < plan.kernel_width; d += blockDim.x) {
    float rest = real && d < plan.width ? z[int64_t{head.first + m} * plan.width + d] : 0.0f;
    for (int p = 0; p < kFeatureParts; ++p) {
      const __nv_bfloat16 part = __float2bfloat16_rn(rest);
      work.z[p * part_step + int64_t{row} * plan.kernel_width + d] = part;
      rest -= __bfloat162float(part);
    }
  }
  if (threadIdx.x != 0) return;
  work.balance[row] = kInfinity;
  work.offsets[row] =
      real ? static_cast<float>(0.5 * (log_alpha[head.first + m] - log(double(head.count))) *
                                1.4426950408889634)
           : -kInfinity;
}

template <class T>
__global__ void split_rows_kernel(const T* x, int64_t rows, int width, int kernel_width, int parts,
                                  __nv_bfloat16* to) {
  const int64_t at = int64_t{blockIdx.x} * kSplitThreads + threadIdx.x, all = rows * kernel_width;
  if (at >= all) return;
  const int d = static_cast<int>(at % kernel_width);
  float rest = d < width ? static_cast<float>(x[at / kernel_width * width + d]) : 0.0f;
  for (int p = 0; p < parts; ++p) {
    const __nv_bfloat16 part = __float2bfloat16_rn(rest);
    to[p * all + at] = part;
    rest -= __bfloat162float(part);
  }
}

cudaError_t split_rows(const Plan& plan, const Workspace& work, const FeatureLossInputs& inputs,
                       cudaStream_t stream) {
  for (int i = 0; i < 2; ++i) {
    const int64_t rows = int64_t{plan.batch} * work.side[i].x_heads * plan.tokens;
    const auto blocks =
        static_cast<unsigned>((rows * plan.kernel_width + kSplitThreads - 1) / kSplitThreads);
    const void* x = i == 0 ? inputs.q : inputs.k;
    const auto split = [&](auto kernel, auto* from) {
      return launch(kernel, dim3(blocks), kSplitThreads, 0, stream, from, rows, plan.width,
                    plan.kernel_width, plan.parts, work.x_parts[i]);
    };
    const cudaError_t status =
        plan.parts == 1
            ? split(split_rows_kernel<__nv_bfloat16>, static_cast<const __nv_bfloat16*>(x))
            : split(split_rows_kernel<float>, static_cast<const float*>(x));
    if (status != cudaSuccess) return status;
  }
  return cudaSuccess;
}

}  // namespace

cudaError_t write_plan(const Plan& plan, const int64_t* counts, const Workspace& work,
                       cudaStream_t stream) {
  Counts by_value{};
  for (int h = 0; h < plan.heads; ++h) by_value.count[h] = static_cast<int>(counts[h]);
  return launch(plan_kernel, dim3(1), kMostHeads, 0, stream, plan, by_value, work);
}

cudaError_t split_inputs(const Plan& plan, const Workspace& work, const FeatureLossInputs& inputs,
                         bool copy_inputs, cudaStream_t stream) {
  const cudaError_t status =
      launch(split_features_kernel, dim3(static_cast<unsigned>(plan.padded_total)), 64, 0, stream,
             plan, work, inputs.z, inputs.log_alpha);
  return status == cudaSuccess && copy_inputs ? split_rows(plan, work, inputs, stream) : status;
}

}  // namespace dofla::cuda::feature_pairs
