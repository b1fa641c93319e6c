#include "dofla/ops/cuda/gemm.h"

#include <utility>

#include "dofla/ops/cuda/cublas_lt.h"

namespace dofla::cuda {
namespace {

cudaDataType_t data_type(Element element) {
  return element == Element::kF32 ? CUDA_R_32F : CUDA_R_16BF;
}

cublasLtEpilogue_t epilogue_of(const Gemm& how) {
  switch (how.epilogue) {
    case Epilogue::kNone:
      return how.bias == nullptr ? CUBLASLT_EPILOGUE_DEFAULT : CUBLASLT_EPILOGUE_BIAS;
    case Epilogue::kGelu:
      if (how.inner == nullptr)
        return how.bias == nullptr ? CUBLASLT_EPILOGUE_GELU : CUBLASLT_EPILOGUE_GELU_BIAS;
      return how.bias == nullptr ? CUBLASLT_EPILOGUE_GELU_AUX : CUBLASLT_EPILOGUE_GELU_AUX_BIAS;
    case Epilogue::kGeluSlope:
      return CUBLASLT_EPILOGUE_DGELU;
  }
  return CUBLASLT_EPILOGUE_DEFAULT;
}

LtDescription describe(const Gemm& how, const Matrix& a, const Matrix& b, Element c_element,
                       int64_t c_stride) {
  LtDescription made = describe_product(CUBLAS_COMPUTE_32F, CUDA_R_32F, a.transposed, b.transposed);
  set(made, CUBLASLT_MATMUL_DESC_EPILOGUE, epilogue_of(how));
  if (how.bias != nullptr) {
    set(made, CUBLASLT_MATMUL_DESC_BIAS_POINTER, how.bias);
    set(made, CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, data_type(c_element));
  }
  if (how.inner != nullptr) {
    set(made, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, how.inner);
    set(made, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, c_stride);
    set(made, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_DATA_TYPE, data_type(c_element));
  }
  return made;
}

// Of a matrix that is [rows, columns] once transposed, if it is to be.
LtMatrix<const void> operand(const Matrix& m, int64_t rows, int64_t columns) {
  if (m.transposed) std::swap(rows, columns);
  return {row_major(data_type(m.element), rows, columns, m.stride), m.data};
}

}  // namespace

void gemm(CudaContext& context, const Gemm& how, int64_t rows, int64_t columns, int64_t inner,
          const Matrix& a, const Matrix& b, void* c, Element c_element, int64_t c_stride) {
  if (rows == 0 || columns == 0) return;
  const float one = 1;
  lt_matmul(
      context,
      {rows, columns, inner, a.stride, b.stride, c_stride, a.transposed, b.transposed,
       static_cast<int64_t>(a.element), static_cast<int64_t>(b.element),
       static_cast<int64_t>(c_element), static_cast<int64_t>(epilogue_of(how)), how.beta != 0},
      describe(how, a, b, c_element, c_stride), &one, operand(a, rows, inner),
      operand(b, inner, columns), &how.beta, how.addend == nullptr ? c : how.addend,
      {row_major(data_type(c_element), rows, columns, c_stride), c});
}

}  // namespace dofla::cuda
