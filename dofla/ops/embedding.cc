#include "dofla/ops/embedding.h"

#include "dofla/ops/activation.h"
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

Tensor embed_sequences(const Tensor& tokens, const Tensor& positions, const Tensor& ids,
                       int64_t first) {
  require(ids.rank() == 2, "embed: expected ids [B, T], found {}", to_string(ids.shape()));
  const int64_t batch = ids.size(0), length = ids.size(1);
  const Tensor rows = ids.reshape({batch * length});
  if (!tokens.device().is_cuda()) {
    Tensor x = embed(tokens, rows);
    if (positions.defined()) add(x, embed(positions, position_ids(batch, length, first)));
    return x;
  }
  require_ids(tokens, rows);
  if (positions.defined()) {
    require(positions.rank() == 2 && positions.size(1) == tokens.size(1) &&
                positions.dtype() == tokens.dtype(),
            "embed: positions {} {} for tokens {} {}", name(positions.dtype()),
            to_string(positions.shape()), name(tokens.dtype()), to_string(tokens.shape()));
    require(first >= 0 && first + length <= positions.size(0),
            "embed: positions {} to {} of a table of {}", first, first + length - 1,
            positions.size(0));
  }
  Tensor x({rows.count(), tokens.size(1)}, tokens.dtype(), tokens.device());
  cuda::embed_sequences(tokens, positions, ids, first, x);
  return x;
}

Tensor position_ids(int64_t batch, int64_t tokens, int64_t first) {
  Tensor positions({batch * tokens}, DType::kI64);
  int64_t* position = positions.data<int64_t>();
  for (int64_t i = 0; i < batch * tokens; ++i) position[i] = first + i % tokens;
  return positions;
}

void embed_backward(const Tensor& ids, const Tensor& grad, Tensor& grad_table) {
  require_ids(grad_table, ids);
  require_shape(grad, {ids.count(), grad_table.size(1)}, "embed_backward: grad");
  const auto run = grad.device().is_cuda() ? cuda::embed_backward : cpu::embed_backward;
  run(ids, grad, grad_table);
}

}  // namespace dofla
