#pragma once

#include <cstdint>

#include <cuda_runtime.h>

namespace dofla::cuda {

// See ops/sampling.h. ids[r] is −1 where no token can be drawn.
cudaError_t launch_draw_tokens(const float* logits,  // [rows, vocabulary]
                               const double* draws,  // [rows, 4]
                               int64_t rows, int64_t vocabulary, int64_t* ids, cudaStream_t stream);

}  // namespace dofla::cuda
