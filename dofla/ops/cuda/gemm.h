// Dense products through cuBLASLt.
#pragma once

#include "dofla/core/device_cuda.h"
#include "dofla/ops/cuda/element.h"

namespace dofla::cuda {

// The epilogue of a product, after the bias: gelu is the tanh approximation, and its slope is taken
// at the `inner` that the forward kept.
enum class Epilogue { kNone, kGelu, kGeluSlope };

// A matrix as it lies in memory, rows `stride` elements apart.
struct Matrix {
  const void* data;
  Element element;
  int64_t stride;
  bool transposed = false;
};

struct Gemm {
  float beta = 0;
  const void* addend = nullptr;  // what beta multiplies, laid out like C; null: C itself
  const void* bias = nullptr;    // [columns], in the element type of C
  Epilogue epilogue = Epilogue::kNone;
  void* inner = nullptr;  // laid out like C, rows of a multiple of 8: with kGelu written (null: not
                          // wanted), with kGeluSlope read
};

// C = epilogue(op(A) op(B) + beta · addend + bias), row-major; C is [rows, columns], `inner` the
// summed extent. Sums are in float32.
void gemm(CudaContext& context, const Gemm& how, int64_t rows, int64_t columns, int64_t inner,
          const Matrix& a, const Matrix& b, void* c, Element c_element, int64_t c_stride);

}  // namespace dofla::cuda
