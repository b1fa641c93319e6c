#include "dofla/ops/cuda/cublas_lt.h"

#include "dofla/core/error.h"

namespace dofla::cuda {
namespace {

constexpr const char* kWhat = "matrix product";

int64_t alignment(const void* data) {
  const auto address = reinterpret_cast<uintptr_t>(data);
  return address % 256 == 0 ? 256 : static_cast<int64_t>(address & -address);
}

cublasLtMatmulAlgo_t choose(CudaContext& context, const LtDescription& description,
                            const LtMatrix<const void>& a, const LtMatrix<const void>& b,
                            const LtMatrix<void>& c) {
  cublasLtMatmulPreference_t raw = nullptr;
  cublas_check(cublasLtMatmulPreferenceCreate(&raw), kWhat);
  const std::unique_ptr<cublasLtMatmulPreferenceOpaque_t, DestroyLt> preference(raw);
  const auto prefer = [&](cublasLtMatmulPreferenceAttributes_t attribute, auto value) {
    cublas_check(cublasLtMatmulPreferenceSetAttribute(raw, attribute, &value, sizeof value), kWhat);
  };
  prefer(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, size_t{CudaContext::kCublasWorkspace});
  const auto aligned = [](const void* data) { return static_cast<uint32_t>(alignment(data)); };
  prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, aligned(b.data));
  prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, aligned(a.data));
  prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, aligned(c.data));
  prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, aligned(c.data));
  cublasLtMatmulHeuristicResult_t result = {};
  int found = 0;
  cublas_check(cublasLtMatmulAlgoGetHeuristic(context.cublas(), description.get(), b.layout.get(),
                                              a.layout.get(), c.layout.get(), c.layout.get(), raw,
                                              1, &result, &found),
               kWhat);
  if (found == 0) fail("{}: cuBLASLt knows no way to do it", kWhat);
  return result.algo;
}

}  // namespace

LtDescription describe_product(cublasComputeType_t compute, cudaDataType_t scale, bool a_transposed,
                               bool b_transposed) {
  cublasLtMatmulDesc_t raw = nullptr;
  cublas_check(cublasLtMatmulDescCreate(&raw, compute, scale), kWhat);
  LtDescription description(raw);
  set(description, CUBLASLT_MATMUL_DESC_TRANSA, b_transposed ? CUBLAS_OP_T : CUBLAS_OP_N);
  set(description, CUBLASLT_MATMUL_DESC_TRANSB, a_transposed ? CUBLAS_OP_T : CUBLAS_OP_N);
  return description;
}

LtLayout row_major(cudaDataType_t type, int64_t rows, int64_t columns, int64_t stride) {
  cublasLtMatrixLayout_t raw = nullptr;
  cublas_check(cublasLtMatrixLayoutCreate(&raw, type, static_cast<uint64_t>(columns),
                                          static_cast<uint64_t>(rows), stride),
               kWhat);
  return LtLayout(raw);
}

void lt_matmul(CudaContext& context, std::vector<int64_t> kind, const LtDescription& description,
               const void* alpha, const LtMatrix<const void>& a, const LtMatrix<const void>& b,
               const void* beta, const void* addend, const LtMatrix<void>& c) {
  kind.insert(kind.end(), {alignment(a.data), alignment(b.data), alignment(c.data)});
  auto found = context.matmul_algorithms.find(kind);
  if (found == context.matmul_algorithms.end())
    found = context.matmul_algorithms.emplace(kind, choose(context, description, a, b, c)).first;
  cublas_check(cublasLtMatmul(context.cublas(), description.get(), alpha, b.data, b.layout.get(),
                              a.data, a.layout.get(), beta, addend, c.layout.get(), c.data,
                              c.layout.get(), &found->second, context.cublas_workspace(),
                              CudaContext::kCublasWorkspace, context.stream()),
               kWhat);
}

}  // namespace dofla::cuda
