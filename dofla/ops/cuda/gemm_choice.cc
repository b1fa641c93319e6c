#include "dofla/ops/cuda/gemm_choice.h"

#include <memory>
#include <vector>

#include "dofla/core/error.h"
#include "dofla/ops/cuda/element_kernels.h"

namespace dofla::cuda {
namespace {

constexpr const char* kWhat = "matrix product";
constexpr int kMostWays = 8;
constexpr double kWorthTiming = 1e10;  // operations: below, a product takes no longer than a launch
constexpr int kRuns = 5;

uint32_t alignment(const void* data) {
  const auto address = reinterpret_cast<uintptr_t>(data);
  return address % 256 == 0 ? 256 : static_cast<uint32_t>(address & -address);
}

std::vector<cublasLtMatmulAlgo_t> suggestions(CudaContext& context, const CublasProduct& product,
                                              int most) {
  struct Destroy {
    void operator()(cublasLtMatmulPreferenceOpaque_t* p) const {
      cublasLtMatmulPreferenceDestroy(p);
    }
  };
  cublasLtMatmulPreference_t raw = nullptr;
  cublas_check(cublasLtMatmulPreferenceCreate(&raw), kWhat);
  const std::unique_ptr<cublasLtMatmulPreferenceOpaque_t, Destroy> preference(raw);
  const auto prefer = [&](cublasLtMatmulPreferenceAttributes_t attribute, auto value) {
    cublas_check(cublasLtMatmulPreferenceSetAttribute(raw, attribute, &value, sizeof value), kWhat);
  };
  prefer(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, size_t{CudaContext::kCublasWorkspace});
  prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, alignment(product.a));
  prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, alignment(product.b));
  prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, alignment(product.c));
  prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, alignment(product.d));
  std::vector<cublasLtMatmulHeuristicResult_t> results(static_cast<size_t>(most));
  int found = 0;
  cublas_check(cublasLtMatmulAlgoGetHeuristic(context.cublas(), product.description,
                                              product.a_layout, product.b_layout, product.d_layout,
                                              product.d_layout, raw, most, results.data(), &found),
               kWhat);
  if (found == 0) fail("{}: cuBLASLt knows no way to do it", kWhat);
  std::vector<cublasLtMatmulAlgo_t> ways;
  for (int i = 0; i < found; ++i) ways.push_back(results[static_cast<size_t>(i)].algo);
  return ways;
}

// Memory of the context for as long as a choice takes.
struct Scratch {
  CudaContext& context;
  void* data;

  Scratch(CudaContext& owner, int64_t bytes)
      : context(owner), data(owner.allocate(static_cast<size_t>(bytes))) {
    // Rows may lie apart, and what lies between them is compared too.
    cuda_check(cudaMemsetAsync(data, 0, static_cast<size_t>(bytes), owner.stream()), kWhat);
  }
  ~Scratch() { context.release(data); }
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;
};

struct Timer {
  cudaEvent_t begin = nullptr, end = nullptr;

  Timer() {
    cuda_check(cudaEventCreate(&begin), kWhat);
    cuda_check(cudaEventCreate(&end), kWhat);
  }
  ~Timer() {
    cudaEventDestroy(begin);
    cudaEventDestroy(end);
  }
  template <class Run>
  float milliseconds(cudaStream_t stream, const Run& run) const {
    float time = 0;
    cuda_check(cudaEventRecord(begin, stream), kWhat);
    for (int i = 0; i < kRuns; ++i) run();
    cuda_check(cudaEventRecord(end, stream), kWhat);
    cuda_check(cudaEventSynchronize(end), kWhat);
    cuda_check(cudaEventElapsedTime(&time, begin, end), kWhat);
    return time;
  }
};

bool same_bits(CudaContext& context, const void* a, const void* b, int64_t bytes) {
  const Scratch flag(context, sizeof(int));
  int differ = 0;
  cuda_check(launch_differ(a, b, bytes / 4, static_cast<int*>(flag.data), context.stream()), kWhat);
  cuda_check(
      cudaMemcpyAsync(&differ, flag.data, sizeof differ, cudaMemcpyDeviceToHost, context.stream()),
      kWhat);
  cuda_check(cudaStreamSynchronize(context.stream()), kWhat);
  return differ == 0;
}

bool can_be_timed(CudaContext& context, const CublasProduct& product) {
  cudaStreamCaptureStatus capture = cudaStreamCaptureStatusNone;
  cuda_check(cudaStreamIsCapturing(context.stream(), &capture), kWhat);
  return capture == cudaStreamCaptureStatusNone && product.operations >= kWorthTiming &&
         product.d_bytes % 4 == 0 &&
         context.available_bytes() > 4 * static_cast<size_t>(product.d_bytes);
}

}  // namespace

cublasStatus_t run_product(CudaContext& context, const CublasProduct& product, void* d,
                           const cublasLtMatmulAlgo_t& way) {
  const float one = 1;
  return cublasLtMatmul(context.cublas(), product.description, &one, product.a, product.a_layout,
                        product.b, product.b_layout, &product.beta, product.c, product.d_layout, d,
                        product.d_layout, &way, context.cublas_workspace(),
                        CudaContext::kCublasWorkspace, context.stream());
}

cublasLtMatmulAlgo_t choose_way(CudaContext& context, const CublasProduct& product) {
  const bool timed = can_be_timed(context, product);
  const std::vector<cublasLtMatmulAlgo_t> ways =
      suggestions(context, product, timed ? kMostWays : 1);
  if (ways.size() == 1) return ways.front();
  const Scratch expected(context, product.d_bytes), other(context, product.d_bytes);
  const Timer timer;
  const auto time_of = [&](const cublasLtMatmulAlgo_t& way) {
    return timer.milliseconds(context.stream(),
                              [&] { run_product(context, product, other.data, way); });
  };
  if (run_product(context, product, expected.data, ways.front()) != CUBLAS_STATUS_SUCCESS)
    return ways.front();
  cublasLtMatmulAlgo_t best = ways.front();
  float least = time_of(best);
  for (size_t i = 1; i < ways.size(); ++i) {
    if (run_product(context, product, other.data, ways[i]) != CUBLAS_STATUS_SUCCESS ||
        !same_bits(context, expected.data, other.data, product.d_bytes))
      continue;
    const float time = time_of(ways[i]);
    if (time < least) least = time, best = ways[i];
  }
  return best;
}

}  // namespace dofla::cuda
