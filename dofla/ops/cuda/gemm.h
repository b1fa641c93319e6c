// Dense products through cuBLASLt.
#pragma once

#include "dofla/core/device_cuda.h"
#include "dofla/ops/cuda/element.h"

namespace dofla::cuda {

// What happens to a product on its way to memory.
enum class Epilogue { kNone, kBias };

// A matrix as it lies in memory, rows `stride` elements apart.
struct Matrix {
  const void* data;
  Element element;
  int64_t stride;
  bool transposed = false;
};

struct Gemm {
  float alpha = 1;
  float beta = 0;
  Epilogue epilogue = Epilogue::kNone;
  const void* bias = nullptr;  // [columns], in the element type of C
};

// C = alpha · op(A) op(B) + beta · C (and the epilogue), row-major; C is [rows, columns], `inner`
// the summed extent. Sums are in float32.
void gemm(CudaContext& context, const Gemm& how, int64_t rows, int64_t columns, int64_t inner,
          const Matrix& a, const Matrix& b, void* c, Element c_element, int64_t c_stride);

}  // namespace dofla::cuda
