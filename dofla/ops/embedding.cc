#include "dofla/ops/embedding.h"

#include "dofla/ops/cpu/embedding.h"

namespace dofla {

Tensor embed(const Tensor& table, const Tensor& ids) {
  require(table.rank() == 2 && ids.rank() == 1, "embed: table {} and ids {}",
          to_string(table.shape()), to_string(ids.shape()));
  for (int64_t i = 0; i < ids.count(); ++i) {
    const int64_t id = ids.data<int64_t>()[i];
    require(id >= 0 && id < table.size(0), "token id {} is outside the vocabulary of {}", id,
            table.size(0));
  }
  Tensor out({ids.count(), table.size(1)});
  cpu::embed(table, ids, out);
  return out;
}

}  // namespace dofla
