#include "dofla/ops/embedding.h"

#include <algorithm>

#include <fmt/ranges.h>

#include "dofla/ops/activation.h"

namespace dofla {
namespace {

void require_ids(const Tensor& table, const Tensor& ids) {
  require(table.rank() == 2 && ids.rank() == 1, "embed: table {} and ids {}", table.shape(),
          ids.shape());
  const int64_t* id = ids.data<int64_t>();
  const int64_t vocabulary = table.size(0);
  for (int64_t i = 0; i < ids.count(); ++i)
    require(id[i] >= 0 && id[i] < vocabulary, "token id {} is outside the vocabulary of {}", id[i],
            vocabulary);
}

const EmbeddingBackend& embedding_backend(const Tensor& x) {
  return x.device().is_cuda() ? cuda::kEmbedding : cpu::kEmbedding;
}

void require_positions(const Tensor& tokens, const Tensor& positions, const Tensor& first,
                       int64_t length) {
  if (!positions.defined()) return;
  require(positions.rank() == 2 && positions.size(1) == tokens.size(1) &&
              positions.dtype() == tokens.dtype(),
          "embed: positions {} {} for tokens {} {}", name(positions.dtype()), positions.shape(),
          name(tokens.dtype()), tokens.shape());
  if (first.device().is_cuda()) return;
  for (int64_t b = 0; b < std::max<int64_t>(1, first.count()); ++b) {
    const int64_t at = first.defined() ? first.data<int64_t>()[b] : 0;
    require(at >= 0 && at + length <= positions.size(0),
            "embed: positions {} to {} of a table of {}", at, at + length - 1, positions.size(0));
  }
}

}  // namespace

Tensor embed(const Tensor& table, const Tensor& ids) {
  require_ids(table, ids);
  const bool gpu = table.device().is_cuda();
  Tensor out({ids.count(), table.size(1)}, gpu ? table.dtype() : DType::kF32, table.device());
  embedding_backend(table).embed(table, ids, out);
  return out;
}

Tensor embed_sequences(const Tensor& tokens, const Tensor& positions, const Tensor& ids,
                       const Tensor& first) {
  require(ids.rank() == 2, "embed: expected ids [B, T], found {}", ids.shape());
  const int64_t batch = ids.size(0), length = ids.size(1);
  if (first.defined()) require_shape(first, {batch}, "embed: first positions");
  const Tensor rows = ids.reshape({batch * length});
  if (embedding_backend(tokens).embed_sequences == nullptr) {
    Tensor x = embed(tokens, rows);
    if (positions.defined()) add(x, embed(positions, position_ids(batch, length, first)));
    return x;
  }
  if (!ids.device().is_cuda()) require_ids(tokens, rows);
  require_positions(tokens, positions, first, length);
  Tensor x({rows.count(), tokens.size(1)}, tokens.dtype(), tokens.device());
  embedding_backend(tokens).embed_sequences(tokens, positions, ids, first, x);
  return x;
}

Tensor position_ids(int64_t batch, int64_t tokens, const Tensor& first) {
  Tensor positions({batch * tokens}, DType::kI64);
  int64_t* position = positions.data<int64_t>();
  for (int64_t i = 0; i < batch * tokens; ++i)
    position[i] = (first.defined() ? first.data<int64_t>()[i / tokens] : 0) + i % tokens;
  return positions;
}

void embed_backward(const Tensor& ids, const Tensor& grad, Tensor& grad_table) {
  require_ids(grad_table, ids);
  require_shape(grad, {ids.count(), grad_table.size(1)}, "embed_backward: grad");
  embedding_backend(grad).embed_backward(ids, grad, grad_table);
}

}  // namespace dofla
