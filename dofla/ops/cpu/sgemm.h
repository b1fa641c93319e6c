// Single-precision matrix products through oneDNN.
#pragma once

#include <cstdint>

#include <dnnl.h>

#include "dofla/core/error.h"

namespace dofla::cpu {

// C = alpha · op(A) op(B) + beta · C, row-major; op transposes where asked. C is [rows, columns],
// `inner` the summed extent; ld* are the distances between stored rows. Runs on all cores, or on
// one when called from inside a parallel loop.
struct Sgemm {
  bool transpose_a = false;
  bool transpose_b = false;
  float alpha = 1;
  float beta = 0;
};

inline void sgemm(const Sgemm& how, int64_t rows, int64_t columns, int64_t inner, const float* a,
                  int64_t lda, const float* b, int64_t ldb, float* c, int64_t ldc) {
  if (rows == 0 || columns == 0) return;
  const dnnl_status_t status =
      dnnl_sgemm(how.transpose_a ? 'T' : 'N', how.transpose_b ? 'T' : 'N', rows, columns, inner,
                 how.alpha, a, lda, b, ldb, how.beta, c, ldc);
  if (status != dnnl_success) fail("oneDNN refused a matrix product (status {})", int{status});
}

}  // namespace dofla::cpu
