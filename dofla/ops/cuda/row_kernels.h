#pragma once

#include "dofla/ops/cuda/element.h"

namespace dofla::cuda {

// to[moves[i, 1]] = from[moves[i, 0]]; rows are `width` long.
cudaError_t launch_copy_rows(Element element, const void* from, int64_t width,
                             const int64_t* moves,  // [count, 2]
                             int64_t count, float* to, cudaStream_t stream);

}  // namespace dofla::cuda
