// What all products through cuBLASLt share: owners of its descriptions and layouts, and the
// call itself.
#pragma once

#include <memory>
#include <vector>

#include "dofla/core/device_cuda.h"

namespace dofla::cuda {

struct DestroyLt {
  void operator()(cublasLtMatmulDescOpaque_t* p) const { cublasLtMatmulDescDestroy(p); }
  void operator()(cublasLtMatrixLayoutOpaque_t* p) const { cublasLtMatrixLayoutDestroy(p); }
  void operator()(cublasLtMatmulPreferenceOpaque_t* p) const { cublasLtMatmulPreferenceDestroy(p); }
};
using LtDescription = std::unique_ptr<cublasLtMatmulDescOpaque_t, DestroyLt>;
using LtLayout = std::unique_ptr<cublasLtMatrixLayoutOpaque_t, DestroyLt>;

// cuBLAS is column-major: row-major matrices look transposed to it, and it computes
// Cᵀ = op(B)ᵀ op(A)ᵀ. These take A, B and C as they are meant.
LtDescription describe_product(cublasComputeType_t compute, cudaDataType_t scale, bool a_transposed,
                               bool b_transposed);
LtLayout row_major(cudaDataType_t type, int64_t rows, int64_t columns, int64_t stride);

void set(const LtDescription& description, cublasLtMatmulDescAttributes_t attribute, auto value) {
  cublas_check(cublasLtMatmulDescSetAttribute(description.get(), attribute, &value, sizeof value),
               "matrix product");
}

void set(const LtLayout& layout, cublasLtMatrixLayoutAttribute_t attribute, auto value) {
  cublas_check(cublasLtMatrixLayoutSetAttribute(layout.get(), attribute, &value, sizeof value),
               "matrix product");
}

template <class Data>
struct LtMatrix {
  LtLayout layout;
  Data* data;
};

// C = alpha · op(A) op(B) + beta · addend, which is laid out like C. alpha and beta are of the
// description's scale type. Asking for the best way takes longer than a small product: products of
// one `kind`, which says everything but how the matrices are aligned, ask once.
void lt_matmul(CudaContext& context, std::vector<int64_t> kind, const LtDescription& description,
               const void* alpha, const LtMatrix<const void>& a, const LtMatrix<const void>& b,
               const void* beta, const void* addend, const LtMatrix<void>& c);

}  // namespace dofla::cuda
