#include "dofla/ops/cuda/batched_gemm.h"

#include <utility>

#include "dofla/ops/cuda/cublas_lt.h"

namespace dofla::cuda {
namespace {

// Of row-major matrices that are [rows, columns] once transposed, if they are to be.
LtLayout layout(const MatrixBatch& m, int64_t batch, int64_t rows, int64_t columns) {
  if (m.transposed) std::swap(rows, columns);
  LtLayout made = row_major(CUDA_R_64F, rows, columns, m.stride);
  set(made, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, static_cast<int32_t>(batch));
  set(made, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, m.distance);
  return made;
}

}  // namespace

void batched_gemm(CudaContext& context, int64_t batch, int64_t rows, int64_t columns, int64_t inner,
                  double alpha, const MatrixBatch& a, const MatrixBatch& b, double beta,
                  const MatrixBatch& c) {
  // The first entry sets these kinds apart from those of gemm.cc, which begin with a number of
  // rows.
  constexpr int64_t kBatchedF64 = -1;
  lt_matmul(context,
            {kBatchedF64, batch, rows, columns, inner, a.stride, b.stride, c.stride, a.distance,
             b.distance, c.distance, a.transposed, b.transposed, beta != 0},
            describe_product(CUBLAS_COMPUTE_64F, CUDA_R_64F, a.transposed, b.transposed), &alpha,
            {layout(a, batch, rows, inner), a.data}, {layout(b, batch, inner, columns), b.data},
            &beta, c.data, {layout(c, batch, rows, columns), c.data});
}

}  // namespace dofla::cuda
