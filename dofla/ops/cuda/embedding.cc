#include "dofla/ops/embedding.h"

#include <algorithm>
#include <numeric>
#include <span>

#include "dofla/ops/cuda/embedding_kernels.h"
#include "dofla/ops/cuda/tensors.h"

namespace dofla::cuda {
namespace {

// EmbeddedRows as they go to the GPU, in one copy.
struct RowPlan {
  int64_t count = 0;
  Tensor numbers;  // ids [N], starts [N + 1] and order [N], N the number of rows
};

RowPlan plan_rows(const Tensor& ids) {
  const int64_t rows = ids.count();
  RowPlan plan = {0, Tensor::zeros({3 * rows + 1}, DType::kI64)};
  const int64_t* id = ids.data<int64_t>();
  int64_t* distinct = plan.numbers.data<int64_t>();
  int64_t* starts = distinct + rows;
  const std::span<int64_t> order(starts + rows + 1, static_cast<size_t>(rows));
  std::iota(order.begin(), order.end(), 0);
  std::ranges::stable_sort(order, {}, [id](int64_t row) { return id[row]; });
  for (int64_t i = 0; i < rows; ++i) {
    const int64_t now = id[order[static_cast<size_t>(i)]];
    if (plan.count > 0 && distinct[plan.count - 1] == now) continue;
    distinct[plan.count] = now;
    starts[plan.count++] = i;
  }
  starts[plan.count] = rows;
  return plan;
}

void embed_sequences(const Tensor& tokens, const Tensor& positions, const Tensor& ids,
                     const Tensor& first, Tensor& out) {
  const Tensor ids_there = ids.to(tokens.device());
  const Tensor first_there = first.defined() ? first.to(tokens.device()) : first;
  const Embedding embedding = {element_of(tokens),    ids.count(),  tokens.size(1),
                               integers(ids_there),   tokens.raw(), positions.raw(),
                               integers(first_there), ids.size(1)};
  cuda_check(launch_embed(embedding, out.mutable_raw(), stream_of(tokens)), "embedding");
}

void embed(const Tensor& table, const Tensor& ids, Tensor& out) {
  embed_sequences(table, Tensor(), ids.reshape({1, ids.count()}), Tensor(), out);
}

void embed_backward(const Tensor& ids, const Tensor& grad, Tensor& grad_table) {
  const RowPlan plan = plan_rows(ids);
  const Tensor there = plan.numbers.to(grad.device());
  const auto* numbers = static_cast<const int64_t*>(there.raw());
  const EmbeddedRows rows = {plan.count, numbers, numbers + ids.count(),
                             numbers + 2 * ids.count() + 1};
  cuda_check(launch_embed_backward(element_of(grad), grad.raw(), grad.size(1), rows,
                                   mutable_floats(grad_table), stream_of(grad)),
             "embedding");
}

}  // namespace

const EmbeddingBackend kEmbedding = {embed, embed_sequences, embed_backward};

}  // namespace dofla::cuda
