// A warp computes some outputs at a time, its lanes side by side along the inputs; where there are
// many inputs, several warps divide them. In a layer of a small model all weights of a thread are
// prefetched before x is available, and the kernel is small enough for the next one to share the
// multiprocessor: that one's weights arrive while this one waits and computes. With many outputs
// blocks go through several tiles, and the weights of the next are always in flight.
#include <algorithm>
#include <type_traits>

#include "dofla/ops/cuda/few_row.cuh"

namespace dofla::cuda {
namespace {

template <int kRows, int kOutputs>
struct Shape {
  static constexpr int kSums = kOutputs * kRows;
  static constexpr int kAhead = kSums < 32 ? 3 : 2;  // chunks in flight
  // Blocks that fit a multiprocessor; a grid has at most two for each.
  static constexpr int kBlocks = kSums <= 4 && kOutputs == 2 ? 3 : 2;

  // Warps that share an output's inputs, so that each has few chunks.
  static int splits(int64_t inputs) {
    int splits = 1;
    while (splits < FewRowBlock::kWarps && chunks_of(inputs) > kAhead * splits) splits *= 2;
    return splits;
  }
  static size_t shared_bytes(int64_t inputs, bool with_norm) {
    return 2 * FewRowBlock::kWarps * kSums * sizeof(float) +
           StagedRows<kRows>::bytes(inputs, with_norm);
  }
};

// Eight adjacent weights, zeros outside. They are read once and bypass the L1 cache. Volatile, or
// the compiler may move the load behind a wait; without a branch, so that many are in flight at
// once.
__device__ __forceinline__ uint4 load_weights(const __nv_bfloat16* from, bool inside) {
  uint4 raw = {};
  asm volatile(
      "{\n"
      ".reg .pred inside;\n"
      "setp.ne.b32 inside, %5, 0;\n"
      "@inside ld.global.nc.L1::no_allocate.L2::128B.v4.u32 {%0, %1, %2, %3}, [%4];\n"
      "}"
      : "+r"(raw.x), "+r"(raw.y), "+r"(raw.z), "+r"(raw.w)
      : "l"(from), "r"(static_cast<int>(inside)));
  return raw;
}

// What one chunk of inputs adds to the sums [kOutputs, kRows] of a lane.
template <int kRows, int kOutputs>
__device__ __forceinline__ void add_products(const StagedRows<kRows>& rows, int chunk,
                                             const uint4 (&weights)[kOutputs],
                                             float (&sums)[kOutputs * kRows]) {
  const int k = chunk * FewRowBlock::kChunk + threadIdx.x % 32 * FewRowBlock::kPack;
  Pack<__nv_bfloat16> w[kOutputs];
#pragma unroll
  for (int o = 0; o < kOutputs; ++o) w[o] = unpack(weights[o]);
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    const auto x = LanesSideBySide::load(rows.row(r), k);
#pragma unroll
    for (int o = 0; o < kOutputs; ++o)
#pragma unroll
      for (int j = 0; j < FewRowBlock::kPack; ++j)
        sums[o * kRows + r] = fmaf(w[o].values[j], x.values[j], sums[o * kRows + r]);
  }
}

template <int kRows, int kOutputs>
__global__ void __launch_bounds__(FewRowBlock::kThreads, Shape<kRows, kOutputs>::kBlocks)
    few_row_product(const __grid_constant__ FewRowProduct p, int splits) {
  using Sizes = Shape<kRows, kOutputs>;
  constexpr int kAhead = Sizes::kAhead, kSums = Sizes::kSums, kCopies = 32 / kSums;
  extern __shared__ float4 memory[];
  float* partial = reinterpret_cast<float*>(memory);  // [2, FewRowBlock::kWarps, kSums]
  const StagedRows<kRows> rows(p, memory + 2 * FewRowBlock::kWarps * kSums / 4);
  let_next_start();

  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int split = warp % splits, group = warp / splits;
  const int tile_outputs = FewRowBlock::kWarps / splits * kOutputs;
  const int64_t tiles = (p.outputs + tile_outputs - 1) / tile_outputs;
  const int chunks = chunks_of(p.inputs), share = (chunks + splits - 1) / splits;
  const int first_chunk = split * share;

  const auto load = [&](uint4(&to)[kOutputs], int64_t tile, int chunk) {
    const int64_t n = tile * tile_outputs + group * kOutputs;
    const int64_t k =
        (first_chunk + chunk) * int64_t{FewRowBlock::kChunk} + lane * FewRowBlock::kPack;
#pragma unroll
    for (int o = 0; o < kOutputs; ++o)
      to[o] = load_weights(static_cast<const __nv_bfloat16*>(p.weight) + (n + o) * p.inputs + k,
                           n + o < p.outputs && chunk < share && k < p.inputs);
  };
  // Held are the chunks i, i + kAhead, … of a tile in turn, then those of the next tile.
  uint4 held[kAhead][kOutputs];
#pragma unroll
  for (int i = 0; i < kAhead; ++i) load(held[i], blockIdx.x, i);
  rows.load_norm();

  wait_for_inputs();
  // The sum that scatter_sums leaves in this lane; one lane of one warp runs its epilogue.
  const int own = lane / kCopies, own_output = group * kOutputs + own / kRows;
  const bool first_copy = lane % kCopies == 0;
  const int64_t own_row = first_copy && split == 0 ? own % kRows : p.rows;
  OutputEpilogue epilogue(p, own_row, blockIdx.x * int64_t{tile_outputs} + own_output);
  rows.load();

  for (int64_t tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
    float sums[kSums] = {};  // [kOutputs, kRows]
    for (int start = 0; start < share; start += kAhead) {
#pragma unroll
      for (int i = 0; i < kAhead; ++i) {
        const int chunk = start + i;
        if (chunk < share) {
          if (first_chunk + chunk < chunks)
            add_products<kRows, kOutputs>(rows, first_chunk + chunk, held[i], sums);
          const bool more = chunk + kAhead < share;
          load(held[i], more ? tile : tile + gridDim.x, more ? chunk + kAhead : i);
        }
      }
    }
    float sum = scatter_sums(sums);
    if (splits > 1) {
      if (split > 0 && first_copy) partial[warp * kSums + own] = sum;
      __syncthreads();
      if (split == 0)
        for (int s = 1; s < splits; ++s) sum += partial[(warp + s) * kSums + own];
      // The other buffer: some warps may still read this one, but none that one.
      float* const halves = reinterpret_cast<float*>(memory);
      partial = partial == halves ? halves + FewRowBlock::kWarps * kSums : halves;
    }
    epilogue.store(p, own_row, tile * tile_outputs + own_output, sum);
    epilogue = OutputEpilogue(p, own_row, (tile + gridDim.x) * tile_outputs + own_output);
  }
}

template <int kRows, int kOutputs>
cudaError_t launch_product(const FewRowProduct& p, int multiprocessors, cudaStream_t stream) {
  using Sizes = Shape<kRows, kOutputs>;
  const int splits = Sizes::splits(p.inputs);
  const int64_t tile_outputs = FewRowBlock::kWarps / splits * kOutputs;
  const int64_t tiles = (p.outputs + tile_outputs - 1) / tile_outputs;
  const int64_t blocks = std::min<int64_t>(tiles, 2 * multiprocessors);
  return launch_overlapped(
      few_row_product<kRows, kOutputs>, dim3(static_cast<unsigned>(blocks)), FewRowBlock::kThreads,
      Sizes::shared_bytes(p.inputs, p.norm.weight != nullptr), stream, p, splits);
}

// Calls body(integral_constant) with the kernel's number of rows.
template <class Body>
auto with_rows(int64_t rows, const Body& body) {
  if (rows <= 1) return body(std::integral_constant<int, 1>());
  if (rows <= 2) return body(std::integral_constant<int, 2>());
  if (rows <= 4) return body(std::integral_constant<int, 4>());
  return body(std::integral_constant<int, 8>());
}

// Shared memory of a block such that two fit a multiprocessor of Hopper; 0 without a GPU.
size_t shared_bytes_of_block() {
  constexpr int kMost = 112 << 10;
  int device = 0, bytes = 0;
  if (cudaGetDevice(&device) != cudaSuccess ||
      cudaDeviceGetAttribute(&bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin, device) !=
          cudaSuccess)
    return 0;
  return static_cast<size_t>(std::min(bytes, kMost));
}

}  // namespace

bool few_rows_fit(int64_t rows, int64_t inputs, int64_t outputs, bool with_norm) {
  const size_t limit = shared_bytes_of_block();
  if (rows < 1 || rows > kFewRows || outputs < 1 || inputs < 1 ||
      inputs % FewRowBlock::kPack != 0 || static_cast<size_t>(inputs) > limit)
    return false;
  return with_rows(rows, [&](auto kernel_rows) {
    return Shape<decltype(kernel_rows)::value, 4>::shared_bytes(inputs, with_norm) <= limit;
  });
}

cudaError_t launch_few_row_product(const FewRowProduct& p, cudaStream_t stream) {
  if (!few_rows_fit(p.rows, p.inputs, p.outputs, p.norm.weight != nullptr))
    return cudaErrorInvalidValue;
  int device = 0, multiprocessors = 0;
  cudaError_t status = cudaGetDevice(&device);
  if (status == cudaSuccess)
    status = cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, device);
  if (status != cudaSuccess) return status;
  return with_rows(p.rows, [&](auto kernel_rows) {
    constexpr int kRows = decltype(kernel_rows)::value;
    // Outputs that keep the GPU busy for long share what is read of the rows; few are spread out.
    return p.outputs > 64 * int64_t{multiprocessors}
               ? launch_product<kRows, 4>(p, multiprocessors, stream)
               : launch_product<kRows, 2>(p, multiprocessors, stream);
  });
}

}  // namespace dofla::cuda
