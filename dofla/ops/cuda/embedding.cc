#include "dofla/ops/cuda/embedding.h"

#include "dofla/ops/cuda/embedding_kernels.h"
#include "dofla/ops/cuda/tensors.h"

namespace dofla::cuda {

void embed(const Tensor& table, const Tensor& ids, Tensor& out) {
  const Tensor there = ids.to(table.device());
  cuda_check(launch_embed(element_of(table), table.raw(), table.size(1),
                          static_cast<const int64_t*>(there.raw()), ids.count(), out.mutable_raw(),
                          stream_of(table)),
             "embedding");
}

}  // namespace dofla::cuda
