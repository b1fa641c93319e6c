#include "dofla/ops/cuda/batched_gemm.h"

#include <memory>

#include "dofla/core/error.h"

namespace dofla::cuda {
namespace {

struct Destroy {
  void operator()(cublasLtMatmulDescOpaque_t* p) const { cublasLtMatmulDescDestroy(p); }
  void operator()(cublasLtMatrixLayoutOpaque_t* p) const { cublasLtMatrixLayoutDestroy(p); }
  void operator()(cublasLtMatmulPreferenceOpaque_t* p) const { cublasLtMatmulPreferenceDestroy(p); }
};
using Description = std::unique_ptr<cublasLtMatmulDescOpaque_t, Destroy>;
using Layout = std::unique_ptr<cublasLtMatrixLayoutOpaque_t, Destroy>;
using Preference = std::unique_ptr<cublasLtMatmulPreferenceOpaque_t, Destroy>;

constexpr const char* kWhat = "batched matrix product";

// cuBLAS thinks in columns: it is asked for Cᵀ = op(B)ᵀ op(A)ᵀ.
Description describe(const MatrixBatch& a, const MatrixBatch& b) {
  cublasLtMatmulDesc_t raw = nullptr;
  cublas_check(cublasLtMatmulDescCreate(&raw, CUBLAS_COMPUTE_64F, CUDA_R_64F), kWhat);
  Description description(raw);
  const auto set = [&](cublasLtMatmulDescAttributes_t attribute, bool transposed) {
    const cublasOperation_t operation = transposed ? CUBLAS_OP_T : CUBLAS_OP_N;
    cublas_check(cublasLtMatmulDescSetAttribute(raw, attribute, &operation, sizeof operation),
                 kWhat);
  };
  set(CUBLASLT_MATMUL_DESC_TRANSA, b.transposed);
  set(CUBLASLT_MATMUL_DESC_TRANSB, a.transposed);
  return description;
}

// Of row-major matrices that are [rows, columns] once transposed, if they are to be.
Layout layout(const MatrixBatch& m, int64_t batch, int64_t rows, int64_t columns) {
  if (m.transposed) std::swap(rows, columns);
  cublasLtMatrixLayout_t raw = nullptr;
  cublas_check(cublasLtMatrixLayoutCreate(&raw, CUDA_R_64F, static_cast<uint64_t>(columns),
                                          static_cast<uint64_t>(rows), m.stride),
               kWhat);
  Layout made(raw);
  const auto set = [&](cublasLtMatrixLayoutAttribute_t attribute, auto value) {
    cublas_check(cublasLtMatrixLayoutSetAttribute(raw, attribute, &value, sizeof value), kWhat);
  };
  set(CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, static_cast<int32_t>(batch));
  set(CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, m.distance);
  return made;
}

cublasLtMatmulAlgo_t choose(CudaContext& context, const Description& description, const Layout& a,
                            const Layout& b, const Layout& c) {
  cublasLtMatmulPreference_t raw = nullptr;
  cublas_check(cublasLtMatmulPreferenceCreate(&raw), kWhat);
  const Preference preference(raw);
  const size_t workspace = CudaContext::kCublasWorkspace;
  cublas_check(cublasLtMatmulPreferenceSetAttribute(raw, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
                                                    &workspace, sizeof workspace),
               kWhat);
  cublasLtMatmulHeuristicResult_t result = {};
  int found = 0;
  cublas_check(cublasLtMatmulAlgoGetHeuristic(context.cublas(), description.get(), b.get(), a.get(),
                                              c.get(), c.get(), raw, 1, &result, &found),
               kWhat);
  if (found == 0) fail("{}: cuBLASLt knows no way to do it", kWhat);
  return result.algo;
}

}  // namespace

void batched_gemm(CudaContext& context, int64_t batch, int64_t rows, int64_t columns, int64_t inner,
                  double alpha, const MatrixBatch& a, const MatrixBatch& b, double beta,
                  const MatrixBatch& c) {
  const Description description = describe(a, b);
  const Layout a_layout = layout(a, batch, rows, inner),
               b_layout = layout(b, batch, inner, columns);
  const Layout c_layout = layout(c, batch, rows, columns);
  // Each kind of product asks for the best way once. The first entry sets these kinds apart from
  // those of gemm.cc, which begin with a number of rows.
  constexpr int64_t kBatchedF64 = -1;
  const std::vector<int64_t> kind = {
      kBatchedF64, batch,      rows,       columns,    inner,        a.stride,     b.stride,
      c.stride,    a.distance, b.distance, c.distance, a.transposed, b.transposed, beta != 0};
  auto found = context.matmul_algorithms.find(kind);
  if (found == context.matmul_algorithms.end())
    found = context.matmul_algorithms
                .emplace(kind, choose(context, description, a_layout, b_layout, c_layout))
                .first;
  cublas_check(cublasLtMatmul(context.cublas(), description.get(), &alpha, b.data, b_layout.get(),
                              a.data, a_layout.get(), &beta, c.data, c_layout.get(), c.data,
                              c_layout.get(), &found->second, context.cublas_workspace(),
                              CudaContext::kCublasWorkspace, context.stream()),
               kWhat);
}

}  // namespace dofla::cuda
