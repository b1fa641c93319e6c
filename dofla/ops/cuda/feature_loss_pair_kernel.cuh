// The kernel over pairs, and its choice by parts, width and groups of warps.
#pragma once

#include "dofla/ops/cuda/feature_loss_pairs.cuh"
#include "dofla/ops/cuda/launch.cuh"

namespace dofla::cuda::feature_pairs {

template <PairLoss kLoss, bool kUntied, int kParts, int kWidth, int kGroups>
__global__ __launch_bounds__(128 * kGroups, kGroups == 1 ? kNarrowBlocks : 1) void pair_kernel(
    const __grid_constant__ PairTask task, uint32_t state_offset) {
  auto& state = *reinterpret_cast<PairState*>(shared_memory() + state_offset);
  PairBlock<kLoss, kUntied, PairTiles<kParts, kWidth, kGroups>> block(task, state);
  block.run();
}

template <PairLoss kLoss, bool kUntied>
cudaError_t launch_pairs(const PairTask& task, const PairLaunch& how, cudaStream_t stream) {
  const auto go = [&](auto kernel) {
    const auto state_offset = static_cast<uint32_t>(how.shared_bytes - sizeof(PairState));
    return launch(kernel, dim3(static_cast<unsigned>(how.blocks)), 128 * how.groups,
                  how.shared_bytes, stream, task, state_offset);
  };
  return with_tiling(task.plan, [&](auto parts, auto width) {
    constexpr int kParts = decltype(parts)::value, kWidth = decltype(width)::value;
    return how.groups == 1 ? go(pair_kernel<kLoss, kUntied, kParts, kWidth, 1>)
                           : go(pair_kernel<kLoss, kUntied, kParts, kWidth, 2>);
  });
}

}  // namespace dofla::cuda::feature_pairs
