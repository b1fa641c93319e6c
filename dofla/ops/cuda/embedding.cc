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

void embed_backward(const Tensor& ids, const Tensor& grad, Tensor& grad_table) {
  const Tensor there = ids.to(grad.device());
  cuda_check(launch_embed_backward(element_of(grad), grad.raw(), grad.size(1),
                                   static_cast<const int64_t*>(there.raw()), ids.count(),
                                   mutable_floats(grad_table), stream_of(grad)),
             "embedding");
}

}  // namespace dofla::cuda
