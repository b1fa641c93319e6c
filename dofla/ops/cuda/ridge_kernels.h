// The parts of ridge_traces that are not matrix products. Matrices are float64 and row-major, their
// extent n the number of samples J rounded up to whole blocks; what is added is the identity.
#pragma once

#include <cuda_runtime.h>

#include "dofla/ops/cuda/matrix_batch.h"
#include "dofla/ops/gram_scale.h"

namespace dofla::cuda {

constexpr int kRidgeBlock = 64;  // the width of a diagonal block

// Of one head: Σ = exp(log K − shift).
struct GramShift {
  double shift;
  double trace;  // of Σ; NaN where a sample is not finite
};

struct RidgeShape {
  int64_t count;    // N, matrices
  int64_t samples;  // J
  int64_t size;     // n
  int64_t width;    // D
};

// rows = samples / D^¼, zeros below: log K(x, y) is the inner product of two rows.
cudaError_t launch_kernel_rows(const RidgeShape& shape,
                               const float* samples,  // [N, J, D]
                               double* rows,          // [N, n, D]
                               cudaStream_t stream);

cudaError_t launch_gram_shifts(const RidgeShape& shape, GramScale scale,
                               const double* rows,  // [N, n, D]
                               GramShift* shifts,   // [N]
                               cudaStream_t stream);

// From log K to Σ+λI in place: rows [first, n) and columns [first, first + columns).
cudaError_t launch_ridge_panel(const RidgeShape& shape, const GramShift* shifts, double lambda,
                               int64_t first, int64_t columns, const MatrixBatch& panel,
                               cudaStream_t stream);

// inverse = L⁻¹ with zeros above its diagonal, where L Lᵀ = block, [kRidgeBlock, kRidgeBlock], of
// which only the lower triangle is read. NaN from the first pivot on that is not positive.
cudaError_t launch_inverse_factors(int64_t count, const MatrixBatch& block,
                                   const MatrixBatch& inverse, cudaStream_t stream);

// sums[h, b] = Σ x² over the first J rows that lie in block row b, as far as the diagonal block.
cudaError_t launch_square_sums(const RidgeShape& shape, const MatrixBatch& matrix,
                               double* sums,  // [N, n / kRidgeBlock]
                               cudaStream_t stream);

}  // namespace dofla::cuda
