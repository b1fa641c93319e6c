// Weights [inputs, outputs]. A block takes 16 outputs, which is 32 bytes of every input's weights,
// and all inputs: two threads an input, whose sums are then joined in order.
#pragma once

#include "dofla/ops/cuda/few_row.cuh"

namespace dofla::cuda {

struct InOrder {
  __device__ static int at(int k) { return k; }
};

template <int kRows>
struct InputMajor {
  static constexpr int kThreads = 256, kWarps = kThreads / 32;
  static constexpr int kOutputs = 2 * kPack;
  static constexpr int kInputs = kThreads / 2;                         // at a time
  static constexpr int kAhead = kRows == 1 ? 12 : kRows == 2 ? 8 : 4;  // packs on their way
  static constexpr int kBlocks = kRows <= 4 ? 2 : 1;                   // a multiprocessor
  static constexpr int kPartial = kWarps * kOutputs * kRows;
  using Rows = StagedRows<kRows, kThreads, InOrder>;
  static_assert(kChunk % kInputs == 0, "rows are padded to whole passes");

  static size_t shared_bytes(const FewRowProduct& p) {
    return sizeof(float) *
           (kPartial + Rows::floats(padded_inputs(p.inputs), p.norm.weight != nullptr));
  }
};

template <int kRows>
__global__ void __launch_bounds__(InputMajor<kRows>::kThreads, InputMajor<kRows>::kBlocks)
    few_rows_input_major(const __grid_constant__ FewRowProduct p) {
  using Shape = InputMajor<kRows>;
  constexpr int kAhead = Shape::kAhead, kSums = kPack * kRows;
  extern __shared__ float4 memory[];
  float* partial = reinterpret_cast<float*>(memory);  // [warps, kOutputs, kRows]
  const typename Shape::Rows rows(p, partial + Shape::kPartial);
  let_next_start();

  const int half = threadIdx.x % 2, input = threadIdx.x / 2;
  const int64_t tile = blockIdx.x * int64_t{Shape::kOutputs}, n = tile + half * kPack;
  const int passes = rows.padded / Shape::kInputs;
  const auto load = [&](int pass) {
    const int64_t k = pass * int64_t{Shape::kInputs} + input;
    return load_weights(static_cast<const __nv_bfloat16*>(p.weight) + k * p.outputs + n,
                        k < p.inputs && n < p.outputs);
  };
  uint4 held[kAhead];
#pragma unroll
  for (int i = 0; i < kAhead; ++i) held[i] = load(i);
  rows.load_norm();

  wait_for_inputs();
  const int own_output = threadIdx.x % Shape::kOutputs, own_row = threadIdx.x / Shape::kOutputs;
  const Ending ending(p, own_row, tile + own_output);
  rows.load();

  float sums[kSums] = {};  // [kPack, kRows]
  for (int start = 0; start < passes; start += kAhead) {
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      const int pass = start + i;
      if (pass >= passes) break;
      const Pack<__nv_bfloat16> w = unpack(held[i]);
      held[i] = load(pass + kAhead);
      const float* x = rows.x + pass * Shape::kInputs + input;
#pragma unroll
      for (int r = 0; r < kRows; ++r) {
        const float value = x[r * rows.padded];
#pragma unroll
        for (int j = 0; j < kPack; ++j)
          sums[j * kRows + r] = fmaf(w.values[j], value, sums[j * kRows + r]);
      }
    }
  }

  // Over the sixteen inputs of a warp, then over warps.
  const int at = scatter_sums<16, 2>(sums);
  const int warp = threadIdx.x / 32;
#pragma unroll
  for (int j = 0; j < kLeftOver<4, kSums>; ++j)
    partial[(warp * Shape::kOutputs + half * kPack) * kRows + at + j] = sums[j];
  __syncthreads();
  if (own_row >= kRows) return;
  float sum = 0;
#pragma unroll
  for (int w = 0; w < Shape::kWarps; ++w)
    sum += partial[(w * Shape::kOutputs + own_output) * kRows + own_row];
  ending.store(p, own_row, tile + own_output, sum);
}

template <int kRows>
cudaError_t launch_input_major(const FewRowProduct& p, cudaStream_t stream) {
  using Shape = InputMajor<kRows>;
  return launch_overlapped(few_rows_input_major<kRows>,
                           dim3(blocks_for(p.outputs, Shape::kOutputs)), Shape::kThreads,
                           Shape::shared_bytes(p), stream, p);
}

}  // namespace dofla::cuda
