#include "dofla/ops/embedding.h"

#include "dofla/ops/cpu/embedding.h"
#include "dofla/ops/cuda/embedding.h"

namespace dofla {
namespace {

void require_ids(const Tensor& table, const Tensor& ids) {
  require(table.rank() == 2 && ids.rank() == 1, "embed: table {} and ids {}",
          to_string(table.shape()), to_string(ids.shape()));
  const int64_t* id = ids.data<int64_t>();
  const int64_t vocabulary = table.size(0);
  for (int64_t i = 0; i < ids.count(); ++i)
    require(id[i] >= 0 && id[i] < vocabulary, "token id {} is outside the vocabulary of {}", id[i],
            vocabulary);
}

}  // namespace

Tensor embed(const Tensor& table, const Tensor& ids) {
  require_ids(table, ids);
  const bool gpu = table.device().is_cuda();
  Tensor out({ids.count(), table.size(1)}, gpu ? table.dtype() : DType::kF32, table.device());
  gpu ? cuda::embed(table, ids, out) : cpu::embed(table, ids, out);
  return out;
}

void embed_backward(const Tensor& ids, const Tensor& grad, Tensor& grad_table) {
  require_ids(grad_table, ids);
  require_shape(grad, {ids.count(), grad_table.size(1)}, "embed_backward: grad");
  const auto run = grad.device().is_cuda() ? cuda::embed_backward : cpu::embed_backward;
  run(ids, grad, grad_table);
}

}  // namespace dofla
