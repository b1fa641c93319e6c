#include "dofla/ops/embedding.h"

#include "dofla/ops/cpu/embedding.h"

namespace dofla {
namespace {

void require_ids(const Tensor& table, const Tensor& ids) {
  require(table.rank() == 2 && ids.rank() == 1, "embed: table {} and ids {}",
          to_string(table.shape()), to_string(ids.shape()));
  for (int64_t i = 0; i < ids.count(); ++i) {
    const int64_t id = ids.data<int64_t>()[i];
    require(id >= 0 && id < table.size(0), "token id {} is outside the vocabulary of {}", id,
            table.size(0));
  }
}

}  // namespace

Tensor embed(const Tensor& table, const Tensor& ids) {
  require_ids(table, ids);
  Tensor out({ids.count(), table.size(1)});
  cpu::embed(table, ids, out);
  return out;
}

void embed_backward(const Tensor& ids, const Tensor& grad, Tensor& grad_table) {
  require_ids(grad_table, ids);
  require_shape(grad, {ids.count(), grad_table.size(1)}, "embed_backward: grad");
  cpu::embed_backward(ids, grad, grad_table);
}

}  // namespace dofla
