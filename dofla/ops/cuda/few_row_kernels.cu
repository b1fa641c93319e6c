#include "dofla/ops/cuda/few_row_input_major.cuh"
#include "dofla/ops/cuda/few_row_output_major.cuh"

namespace dofla::cuda {
namespace {

// What every GPU that we build for lets a block have.
constexpr size_t kSharedBytes = size_t{96} << 10;

// Calls body(integral_constant) with the kernel's number of rows.
template <class Body>
auto with_rows(int64_t rows, const Body& body) {
  if (rows <= 1) return body(std::integral_constant<int, 1>());
  if (rows <= 2) return body(std::integral_constant<int, 2>());
  if (rows <= 4) return body(std::integral_constant<int, 4>());
  return body(std::integral_constant<int, 8>());
}

}  // namespace

bool few_rows_fit(int64_t rows, int64_t inputs, int64_t outputs, bool input_major) {
  constexpr int64_t kMostInputs = kSharedBytes / sizeof(float);
  if (rows < 1 || rows > kFewRows || inputs < 1 || inputs > kMostInputs || outputs < 1)
    return false;
  if (inputs % kPack != 0 || (input_major && outputs % kPack != 0)) return false;
  FewRowProduct p = {};
  const float any = 0;
  p.inputs = inputs;
  p.norm.weight = &any;  // the larger need
  return with_rows(rows, [&](auto kernel_rows) {
    constexpr int kRows = decltype(kernel_rows)::value;
    return InputMajor<kRows>::shared_bytes(p) <= kSharedBytes &&
           OutputMajor<kRows, 4>::shared_bytes(p) <= kSharedBytes;
  });
}

cudaError_t launch_few_row_product(const FewRowProduct& p, cudaStream_t stream) {
  if (!few_rows_fit(p.rows, p.inputs, p.outputs, p.input_major)) return cudaErrorInvalidValue;
  int device = 0, multiprocessors = 0;
  cudaError_t status = cudaGetDevice(&device);
  if (status == cudaSuccess)
    status = cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, device);
  if (status != cudaSuccess) return status;
  return with_rows(p.rows, [&](auto kernel_rows) {
    constexpr int kRows = decltype(kernel_rows)::value;
    if (p.input_major) return launch_input_major<kRows>(p, stream);
    // Outputs that keep the GPU busy for long share what is read of the rows; few are spread out.
    return p.outputs > 64 * int64_t{multiprocessors}
               ? launch_output_major<kRows, 4>(p, multiprocessors, stream)
               : launch_output_major<kRows, 2>(p, multiprocessors, stream);
  });
}

}  // namespace dofla::cuda
