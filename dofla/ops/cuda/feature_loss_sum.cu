// After the pairs: the results of the work items, summed in a fixed order.
#include "dofla/ops/cuda/feature_loss_plan.h"
#include "dofla/ops/cuda/launch.cuh"
#include "dofla/ops/cuda/tile_mma.cuh"

namespace dofla::cuda::feature_pairs {
namespace {

constexpr int kSlices = 12;  // of the items of a feature, summed side by side
constexpr int kSumThreads = 1024;

// One block a head. The scale of a sequence is the largest that one of its items asked for.
__global__ void loss_kernel(Plan plan, Workspace work, double* per_head) {
  auto* losses = reinterpret_cast<double*>(shared_memory());  // [B]
  const HeadPlan head = work.heads[blockIdx.x];
  const int items = plan.batch * plan.pairs;  // of a window
  for (int b = threadIdx.x; b < plan.batch; b += blockDim.x) {
    const int first = head.first_item + b * plan.pairs;
    float scale = work.results[first].log_wanted;
    for (int i = 1; i < plan.pairs; ++i) scale = fmaxf(scale, work.results[first + i].log_wanted);
    if (scale < kNothing / 1024) scale = kInfinity;  // only padding asked: all weights are 0
    double sum = 0;
    for (int i = 0; i < plan.pairs; ++i)
      sum += work.results[first + i].loss * exp2(2.0 * (work.results[first + i].log_scale - scale));
    losses[b] = sum;
    for (int w = 0; w < head.windows(); ++w)
      for (int i = 0; i < plan.pairs; ++i) {
        const int item = first + w * items + i;
        work.weights[item] = exp2f(2 * (work.results[item].log_scale - scale));
      }
  }
  __syncthreads();
  if (threadIdx.x != 0) return;
  double sum = 0;
  for (int b = 0; b < plan.batch; ++b) sum += losses[b];
  per_head[blockIdx.x] = sum / (double(plan.batch) * plan.tokens);
}

// One block a feature; a column past the last of z is log α.
__global__ __launch_bounds__(kSumThreads) void gradient_kernel(Plan plan, Workspace work,
                                                               FeatureLossOutputs outputs) {
  auto* slices = reinterpret_cast<double*>(shared_memory());  // [kSlices, width + 1]
  const int feature = blockIdx.x, columns = plan.width + 1;
  int h = 0;
  while (feature >= work.heads[h].first + work.heads[h].count) ++h;
  const HeadPlan head = work.heads[h];
  const int m = feature - head.first, items = plan.batch * plan.pairs;
  const int first = head.first_item + m / head.window * items;
  for (int at = threadIdx.x; at < kSlices * columns; at += blockDim.x) {
    const int slice = at / columns, d = at % columns;
    double sum = 0;
#pragma unroll 8
    for (int i = items * slice / kSlices; i < items * (slice + 1) / kSlices; ++i) {
      const int64_t row = plan.partial_row(first + i) + m % head.window;
      const float part =
          d == plan.width ? work.partial_alpha[row] : work.partial_z[row * plan.kernel_width + d];
      sum += static_cast<double>(work.weights[first + i]) * part;
    }
    slices[at] = sum;
  }
  __syncthreads();
  const double scale =
      (plan.loss == PairLoss::kSoftmax ? 1.0 : 2.0) / (double(plan.batch) * plan.tokens);
  for (int d = threadIdx.x; d < columns; d += blockDim.x) {
    double sum = 0;
    for (int s = 0; s < kSlices; ++s) sum += slices[s * columns + d];
    if (d == plan.width)
      outputs.grad_log_alpha[feature] = static_cast<float>(0.5 * scale * sum);
    else
      outputs.grad_z[int64_t{feature} * plan.width + d] =
          static_cast<float>(scale * sum / sqrt(sqrt(double(plan.width))));
  }
}

// The same for untied features, one block a feature of a key head: what its query heads found, one
// after the other. Of the columns the first are of u, then z, then log α and η.
__global__ __launch_bounds__(kSumThreads) void untied_gradient_kernel(Plan plan, Workspace work,
                                                                      FeatureLossOutputs outputs) {
  const int feature = blockIdx.x, width = plan.width, columns = 2 * width + 2;
  auto* slices = reinterpret_cast<double*>(shared_memory());  // [kSlices, columns]
  double* totals = slices + kSlices * columns;                // [columns]
  int h = 0;                                                  // the first of the query heads
  while (feature >= plan.own_feature(work.heads, h, work.heads[h].count)) h += plan.sharing;
  const int m = feature - plan.own_feature(work.heads, h, 0), items = plan.batch * plan.pairs;
  const int64_t plane = plan.partial_row(plan.items()) * plan.kernel_width;
  const double scale =
      (plan.loss == PairLoss::kSoftmax ? 1.0 : 2.0) / (double(plan.batch) * plan.tokens);
  const double inner_scale = scale / sqrt(sqrt(double(width)));
  for (int d = threadIdx.x; d < columns; d += blockDim.x) totals[d] = 0;
  for (const int end = h + plan.sharing; h < end; ++h) {
    const HeadPlan head = work.heads[h];
    const int first = head.first_item + m / head.window * items;
    for (int at = threadIdx.x; at < kSlices * columns; at += blockDim.x) {
      const int slice = at / columns, d = at % columns;
      double sum = 0;
      for (int i = items * slice / kSlices; i < items * (slice + 1) / kSlices; ++i) {
        const int64_t row = plan.partial_row(first + i) + m % head.window;
        float part;
        if (d < 2 * width) {
          const float* shares =
              work.partial_z + d / width * 2 * plane + row * plan.kernel_width + d % width;
          part = shares[0] + shares[plane];
        } else {
          part = (d == 2 * width ? work.partial_alpha : work.partial_norm)[row];
        }
        sum += static_cast<double>(work.weights[first + i]) * part;
      }
      slices[at] = sum;
    }
    __syncthreads();
    for (int d = threadIdx.x; d < columns; d += blockDim.x) {
      double sum = 0;
      for (int s = 0; s < kSlices; ++s) sum += slices[s * columns + d];
      if (d < width)
        outputs.grad_u[int64_t{head.first + m} * width + d] = static_cast<float>(inner_scale * sum);
      else
        totals[d] += sum;
    }
    __syncthreads();
  }
  for (int d = threadIdx.x; d < width; d += blockDim.x)
    outputs.grad_z[int64_t{feature} * width + d] =
        static_cast<float>(inner_scale * totals[width + d]);
  if (threadIdx.x != 0) return;
  outputs.grad_log_alpha[feature] = static_cast<float>(0.5 * scale * totals[2 * width]);
  work.norm_rows[feature] = scale * totals[2 * width + 1];
}

// The gradient of η from those of its features. A thread a key head.
__global__ void norm_kernel(Plan plan, Workspace work, float* grad_norm) {
  const int h = threadIdx.x * plan.sharing, first = plan.own_feature(work.heads, h, 0);
  double sum = 0;
  for (int m = 0; m < work.heads[h].count; ++m) sum += work.norm_rows[first + m];
  grad_norm[threadIdx.x] = static_cast<float>(sum);
}

cudaError_t sum_untied(const Plan& plan, const Workspace& work, const FeatureLossOutputs& outputs,
                       cudaStream_t stream) {
  const cudaError_t status =
      launch(untied_gradient_kernel, dim3(static_cast<unsigned>(plan.total / plan.sharing)),
             kSumThreads, sizeof(double) * (kSlices + 1) * static_cast<size_t>(2 * plan.width + 2),
             stream, plan, work, outputs);
  if (status != cudaSuccess) return status;
  return launch(norm_kernel, dim3(1), plan.heads / plan.sharing, 0, stream, plan, work,
                outputs.grad_norm);
}

}  // namespace

cudaError_t sum_items(const Plan& plan, const Workspace& work, const FeatureLossOutputs& outputs,
                      cudaStream_t stream) {
  const cudaError_t status = launch(loss_kernel, dim3(static_cast<unsigned>(plan.heads)), 64,
                                    sizeof(double) * static_cast<size_t>(plan.batch), stream, plan,
                                    work, outputs.per_head);
  if (status != cudaSuccess) return status;
  if (plan.untied) return sum_untied(plan, work, outputs, stream);
  return launch(gradient_kernel, dim3(static_cast<unsigned>(plan.total)), kSumThreads,
                sizeof(double) * kSlices * static_cast<size_t>(plan.width + 1), stream, plan, work,
                outputs);
}

}  // namespace dofla::cuda::feature_pairs
