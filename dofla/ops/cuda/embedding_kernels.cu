#include "dofla/ops/cuda/embedding_kernels.h"
#include "dofla/ops/cuda/vector.cuh"

namespace dofla::cuda {
namespace {

template <class T>
__global__ void embed_rows(const T* __restrict__ table, int64_t width,
                           const int64_t* __restrict__ ids, T* __restrict__ out) {
  const T* from = table + ids[blockIdx.x] * width;
  T* to = out + blockIdx.x * width;
  for (int64_t i = threadIdx.x; i < width; i += blockDim.x) to[i] = from[i];
}

}  // namespace

cudaError_t launch_embed(Element element, const void* table, int64_t width, const int64_t* ids,
                         int64_t count, void* out, cudaStream_t stream) {
  return with_type(element, [&](auto zero) {
    using T = decltype(zero);
    if (count > 0)
      embed_rows<<<static_cast<unsigned>(count), 128, 0, stream>>>(
          static_cast<const T*>(table), width, ids, static_cast<T*>(out));
  });
}

}  // namespace dofla::cuda
