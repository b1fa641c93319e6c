#include "dofla/ops/cuda/tensor_map.h"

namespace dofla::cuda {
namespace {

using Encode = decltype(&cuTensorMapEncodeTiled);

// The driver's function is asked for by name, so that nothing is linked against the driver.
Encode encoder() {
  static const Encode found = [] {
    void* function = nullptr;
    cudaDriverEntryPointQueryResult result = {};
    const cudaError_t status = cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &function,
                                                                12000, cudaEnableDefault, &result);
    return status == cudaSuccess && result == cudaDriverEntryPointSuccess
               ? reinterpret_cast<Encode>(function)
               : nullptr;
  }();
  return found;
}

}  // namespace

cudaError_t describe_heads(const HeadRows& rows, int64_t batch, int64_t heads, int64_t tokens,
                           int64_t width, int box_rows, CUtensorMap& map) {
  if (encoder() == nullptr) return cudaErrorNotSupported;
  const auto bytes = [](int64_t elements) { return static_cast<cuuint64_t>(elements) * 2; };
  const auto size = [](int64_t count) { return static_cast<cuuint64_t>(count); };
  const cuuint64_t sizes[] = {size(width), size(tokens), size(heads), size(batch)};
  const cuuint64_t steps[] = {bytes(rows.token_step), bytes(rows.head_step),
                              bytes(rows.batch_step)};
  const cuuint32_t box[] = {64, static_cast<cuuint32_t>(box_rows), 1, 1};
  const cuuint32_t every[] = {1, 1, 1, 1};
  const CUresult result =
      encoder()(&map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 4, const_cast<void*>(rows.data), sizes,
                steps, box, every, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
                CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  return result == CUDA_SUCCESS ? cudaSuccess : cudaErrorInvalidValue;
}

}  // namespace dofla::cuda
