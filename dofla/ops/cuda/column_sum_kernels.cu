#include <algorithm>

#include "dofla/ops/cuda/column_sum_kernels.h"
#include "dofla/ops/cuda/vector.cuh"

namespace dofla::cuda {
namespace {

constexpr int kWarps = 8;
constexpr int64_t kBlocks = 512;  // about: four for each multiprocessor of a Hopper GPU

// A lane has kSize neighbouring columns. The warps of a block alternate over its rows, eight at a
// time, and their sums are added in order.
template <class T, int kSize>
__global__ void sum_columns(const T* __restrict__ x, int64_t rows, int64_t columns,
                            float* __restrict__ sums) {
  constexpr int kColumns = 32 * kSize;
  __shared__ __align__(16) float of_warps[kWarps][kColumns];
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int64_t begin = blockIdx.x * int64_t{kColumns}, own = begin + lane * kSize;
  float total[kSize] = {};
  if (own < columns) {
#pragma unroll 4
    for (int64_t r = blockIdx.y * kWarps + warp; r < rows; r += gridDim.y * kWarps) {
      float row[kSize];
      load_some(x + r * columns + own, row);
#pragma unroll
      for (int j = 0; j < kSize; ++j) total[j] += row[j];
    }
  }
#pragma unroll
  for (int j = 0; j < kSize; ++j) of_warps[warp][lane * kSize + j] = total[j];
  __syncthreads();
  for (int c = threadIdx.x; c < kColumns && begin + c < columns; c += 32 * kWarps) {
    float sum = 0;
#pragma unroll
    for (int w = 0; w < kWarps; ++w) sum += of_warps[w][c];
    sums[blockIdx.y * columns + begin + c] = sum;
  }
}

// A block has 32 columns; its warps alternate over the sums, and what they have is added in order.
constexpr int kAddingWarps = 32;

__global__ void add_sums(const float* __restrict__ sums, int64_t blocks, int64_t columns,
                         float* first, float* second) {
  __shared__ float of_warps[kAddingWarps][32];
  float* to = blockIdx.y == 0 ? first : second;
  if (to == nullptr) return;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int64_t column = blockIdx.x * int64_t{32} + lane, step = columns * gridDim.y;
  float total = 0;
  if (column < columns) {
    const float* from = sums + blockIdx.y * columns + column;
#pragma unroll 4
    for (int64_t b = warp; b < blocks; b += kAddingWarps) total += from[b * step];
  }
  of_warps[warp][lane] = total;
  __syncthreads();
  if (warp != 0 || column >= columns) return;
  float sum = 0;
#pragma unroll
  for (int w = 0; w < kAddingWarps; ++w) sum += of_warps[w][lane];
  to[column] += sum;
}

int64_t columns_of_block(Element element, int64_t columns) {
  const int64_t pack = element == Element::kF32 ? Pack<float>::kSize : Pack<__nv_bfloat16>::kSize;
  return 32 * (columns % pack == 0 ? pack : 1);
}

}  // namespace

int64_t column_sum_blocks(Element element, int64_t rows, int64_t columns) {
  const int64_t across = blocks_for(columns, columns_of_block(element, columns));
  const int64_t of_rows = (rows + kWarps - 1) / kWarps;
  return std::clamp<int64_t>(kBlocks / std::max<int64_t>(across, 1), 1,
                             std::max<int64_t>(of_rows, 1));
}

cudaError_t launch_column_sums(Element element, const void* x, int64_t rows, int64_t columns,
                               float* sums, cudaStream_t stream) {
  return with_type(element, [&](auto zero) {
    using T = decltype(zero);
    constexpr int kSize = Pack<T>::kSize;
    const auto blocks = static_cast<unsigned>(column_sum_blocks(element, rows, columns));
    const bool packs = columns % kSize == 0 && aligned_to_packs(x);
    const auto kernel = packs ? sum_columns<T, kSize> : sum_columns<T, 1>;
    const dim3 grid(blocks_for(columns, 32 * (packs ? kSize : 1)), blocks);
    kernel<<<grid, 32 * kWarps, 0, stream>>>(static_cast<const T*>(x), rows, columns, sums);
  });
}

cudaError_t launch_add_sums(const float* sums, int64_t blocks, int64_t columns, float* first,
                            float* second, cudaStream_t stream) {
  const dim3 grid(blocks_for(columns, 32), second == nullptr ? 1 : 2);
  add_sums<<<grid, 32 * kAddingWarps, 0, stream>>>(sums, blocks, columns, first, second);
  return cudaGetLastError();
}

}  // namespace dofla::cuda
