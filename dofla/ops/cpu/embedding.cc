#include "dofla/ops/embedding.h"

#include <algorithm>

#include "dofla/core/parallel.h"
#include "dofla/ops/cpu/vector_rows.h"
#include "dofla/ops/cpu/weight_panels.h"

namespace dofla::cpu {
namespace {

void embed(const Tensor& table, const Tensor& ids, Tensor& out) {
  const int64_t width = table.size(1);
  const int64_t* id = ids.data<int64_t>();
  float* to = out.data<float>();
  parallel_rows(ids.count(),
                [&](int64_t i) { widen(table, {.row = id[i], .columns = width}, to + i * width); });
}

void embed_backward(const Tensor& ids, const Tensor& grad, Tensor& grad_table) {
  constexpr int64_t kColumns = 64;
  const int64_t width = grad.size(1);
  const int64_t* id = ids.data<int64_t>();
  const float* from = grad.data<float>();
  float* to = grad_table.data<float>();
  // A task owns some columns of the whole table: ids may repeat without a conflict.
  parallel_for((width + kColumns - 1) / kColumns, [&](int64_t task) {
    const int64_t begin = task * kColumns, count = std::min(kColumns, width - begin);
    for (int64_t i = 0; i < ids.count(); ++i)
      add_scaled(from + i * width + begin, 1, count, to + id[i] * width + begin);
  });
}

}  // namespace

const EmbeddingBackend kEmbedding = {embed, nullptr, embed_backward};

}  // namespace dofla::cpu
