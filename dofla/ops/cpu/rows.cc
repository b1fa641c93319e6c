#include "dofla/ops/rows.h"

#include <algorithm>

#include "dofla/core/parallel.h"

namespace dofla::cpu {
namespace {

void copy_rows(const Tensor& from, const std::vector<RowMove>& moves, Tensor& to) {
  const Tensor plain = from.to(DType::kF32);
  const float* source = plain.data<float>();
  float* target = to.data<float>();
  const int64_t D = to.size(1);
  parallel_rows(static_cast<int64_t>(moves.size()), [&](int64_t i) {
    const RowMove& move = moves[static_cast<size_t>(i)];
    std::copy_n(source + move.from * D, D, target + move.to * D);
  });
}

}  // namespace

const RowsBackend kRows = {.copy_rows = copy_rows};

}  // namespace dofla::cpu
