// Which of cuBLASLt's ways to do a product is taken.
#pragma once

#include "dofla/core/device_cuda.h"

namespace dofla::cuda {

// A product as cublasLtMatmul takes it: D = epilogue(A B + beta · C), in columns.
struct CublasProduct {
  cublasLtMatmulDesc_t description;
  cublasLtMatrixLayout_t a_layout, b_layout, d_layout;
  const void *a, *b, *c;
  void* d;
  float beta;
  int64_t d_bytes;    // of all of D's rows
  double operations;  // of the product
};

cublasStatus_t run_product(CudaContext& context, const CublasProduct& product, void* d,
                           const cublasLtMatmulAlgo_t& way);

// cuBLASLt's own first choice or, for large products, the fastest of some that gives the same bits:
// which one is fastest may change from run to run, results must not. Waits for the GPU.
cublasLtMatmulAlgo_t choose_way(CudaContext& context, const CublasProduct& product);

}  // namespace dofla::cuda
