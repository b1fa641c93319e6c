#include "dofla/ops/cuda/gemm.h"

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

constexpr const char* kWhat = "matrix product";

cudaDataType_t data_type(Element element) {
  return element == Element::kF32 ? CUDA_R_32F : CUDA_R_16BF;
}

template <class T>
void set(cublasLtMatmulDesc_t description, cublasLtMatmulDescAttributes_t attribute, T value) {
  cublas_check(cublasLtMatmulDescSetAttribute(description, attribute, &value, sizeof value), kWhat);
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

Description describe(const Gemm& how, const Matrix& a, const Matrix& b, Element c_element,
                     int64_t c_stride) {
  cublasLtMatmulDesc_t raw = nullptr;
  cublas_check(cublasLtMatmulDescCreate(&raw, CUBLAS_COMPUTE_32F, CUDA_R_32F), kWhat);
  Description description(raw);
  // cuBLAS thinks in columns: it is asked for Cᵀ = op(B)ᵀ op(A)ᵀ.
  set(raw, CUBLASLT_MATMUL_DESC_TRANSA, b.transposed ? CUBLAS_OP_T : CUBLAS_OP_N);
  set(raw, CUBLASLT_MATMUL_DESC_TRANSB, a.transposed ? CUBLAS_OP_T : CUBLAS_OP_N);
  set(raw, CUBLASLT_MATMUL_DESC_EPILOGUE, epilogue_of(how));
  if (how.bias != nullptr) {
    set(raw, CUBLASLT_MATMUL_DESC_BIAS_POINTER, how.bias);
    set(raw, CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, data_type(c_element));
  }
  if (how.inner != nullptr) {
    set(raw, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, how.inner);
    set(raw, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, c_stride);
    set(raw, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_DATA_TYPE, data_type(c_element));
  }
  return description;
}

// The layout of a row-major matrix of this extent, which cuBLAS sees transposed.
Layout layout(Element element, int64_t rows, int64_t columns, int64_t stride) {
  cublasLtMatrixLayout_t raw = nullptr;
  cublas_check(cublasLtMatrixLayoutCreate(&raw, data_type(element), static_cast<uint64_t>(columns),
                                          static_cast<uint64_t>(rows), stride),
               kWhat);
  return Layout(raw);
}

Layout operand(const Matrix& m, int64_t rows, int64_t columns) {
  return m.transposed ? layout(m.element, columns, rows, m.stride)
                      : layout(m.element, rows, columns, m.stride);
}

int64_t alignment(const void* data) {
  const auto address = reinterpret_cast<uintptr_t>(data);
  return address % 256 == 0 ? 256 : static_cast<int64_t>(address & -address);
}

cublasLtMatmulAlgo_t choose(CudaContext& context, const Description& description, const Layout& a,
                            const Layout& b, const Layout& c, const Matrix& a_matrix,
                            const Matrix& b_matrix, const void* c_data) {
  cublasLtMatmulPreference_t raw = nullptr;
  cublas_check(cublasLtMatmulPreferenceCreate(&raw), kWhat);
  const std::unique_ptr<cublasLtMatmulPreferenceOpaque_t, Destroy> preference(raw);
  const auto prefer = [&](cublasLtMatmulPreferenceAttributes_t attribute, auto value) {
    cublas_check(cublasLtMatmulPreferenceSetAttribute(raw, attribute, &value, sizeof value), kWhat);
  };
  prefer(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, size_t{CudaContext::kCublasWorkspace});
  const auto aligned = [](const void* data) { return static_cast<uint32_t>(alignment(data)); };
  prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, aligned(b_matrix.data));
  prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, aligned(a_matrix.data));
  prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, aligned(c_data));
  prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, aligned(c_data));
  cublasLtMatmulHeuristicResult_t result = {};
  int found = 0;
  cublas_check(cublasLtMatmulAlgoGetHeuristic(context.cublas(), description.get(), b.get(), a.get(),
                                              c.get(), c.get(), raw, 1, &result, &found),
               kWhat);
  if (found == 0) fail("{}: cuBLASLt knows no way to do it", kWhat);
  return result.algo;
}

}  // namespace

void gemm(CudaContext& context, const Gemm& how, int64_t rows, int64_t columns, int64_t inner,
          const Matrix& a, const Matrix& b, void* c, Element c_element, int64_t c_stride) {
  if (rows == 0 || columns == 0) return;
  const Description description = describe(how, a, b, c_element, c_stride);
  const Layout a_layout = operand(a, rows, inner), b_layout = operand(b, inner, columns);
  const Layout c_layout = layout(c_element, rows, columns, c_stride);
  // Asking for the best way takes longer than a small product: each kind of product asks once.
  const std::vector<int64_t> kind = {rows,
                                     columns,
                                     inner,
                                     a.stride,
                                     b.stride,
                                     c_stride,
                                     a.transposed,
                                     b.transposed,
                                     static_cast<int64_t>(a.element),
                                     static_cast<int64_t>(b.element),
                                     static_cast<int64_t>(c_element),
                                     static_cast<int64_t>(epilogue_of(how)),
                                     how.beta != 0,
                                     alignment(a.data),
                                     alignment(b.data),
                                     alignment(c)};
  auto found = context.matmul_algorithms.find(kind);
  if (found == context.matmul_algorithms.end())
    found = context.matmul_algorithms
                .emplace(kind, choose(context, description, a_layout, b_layout, c_layout, a, b, c))
                .first;
  const float one = 1;
  const void* addend = how.addend == nullptr ? c : how.addend;
  cublas_check(cublasLtMatmul(context.cublas(), description.get(), &one, b.data, b_layout.get(),
                              a.data, a_layout.get(), &how.beta, addend, c_layout.get(), c,
                              c_layout.get(), &found->second, context.cublas_workspace(),
                              CudaContext::kCublasWorkspace, context.stream()),
               kWhat);
}

}  // namespace dofla::cuda
