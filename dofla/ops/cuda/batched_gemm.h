// Products of many float64 matrices at once, through cuBLASLt.
#pragma once

#include "dofla/core/device_cuda.h"
#include "dofla/ops/cuda/matrix_batch.h"

namespace dofla::cuda {

// C = alpha · op(A) op(B) + beta · C for `batch` matrices, row-major; C is [rows, columns], `inner`
// the summed extent. C overlaps neither A nor B; every matrix begins at a multiple of 256 bytes.
void batched_gemm(CudaContext& context, int64_t batch, int64_t rows, int64_t columns, int64_t inner,
                  double alpha, const MatrixBatch& a, const MatrixBatch& b, double beta,
                  const MatrixBatch& c);

}  // namespace dofla::cuda
