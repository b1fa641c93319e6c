// The embedding stage: every block computes some of the coordinates.
#pragma once

#include "dofla/ops/cuda/stage_ring.cuh"
#include "dofla/ops/cuda/tagged_row.cuh"
#include "dofla/ops/cuda/vector.cuh"

namespace dofla::cuda {

__device__ __forceinline__ void compute_embedding(const EmbedStage& s, int64_t id, int64_t position,
                                                  Tag tag) {
  const int share = (s.width + gridDim.x - 1) / gridDim.x, first = blockIdx.x * share;
  const auto at = [&](const void* table, int64_t row, int d) {
    return to_float(static_cast<const __nv_bfloat16*>(table)[row * s.width + d]);
  };
  for (int d = first + threadIdx.x; d < min(first + share, s.width);
       d += StageBlock::kConsumerThreads) {
    float value = at(s.tokens, id, d);
    if (s.positions != nullptr) value += at(s.positions, position, d);
    publish(s.y, s.width, d, value, tag);
  }
}

}  // namespace dofla::cuda
