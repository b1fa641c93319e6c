#include "dofla/ops/row_gather.h"

#include <algorithm>

#include "dofla/core/parallel.h"
#include "dofla/ops/cpu/vector_rows.h"

namespace dofla::cpu {
namespace {

// Calls `row(where in the index, element of x, whether a row is named)` for the rows of all heads.
template <class Row>
void for_rows(const Tensor& index, const Tensor& x, const Row& row) {
  require(x.dtype() == DType::kF32, "rows: expected F32, found {}", name(x.dtype()));
  const int64_t heads = x.size(1), rows = x.size(2);
  const int64_t count = index.size(2), shared = heads / index.size(1);
  parallel_for(x.size(0) * heads, [&](int64_t head) {
    const int64_t sequence = index.size(0) == 1 ? 0 : head / heads;
    const int32_t* named =
        index.data<int32_t>() + (sequence * index.size(1) + head % heads / shared) * count;
    const int64_t begin = head / heads * x.step(0) + head % heads * x.step(1);
    for (int64_t r = 0; r < count; ++r) {
      require(named[r] >= -1 && named[r] < rows, "rows: {} of {}", named[r], rows);
      row(head * count + r, begin + named[r] * x.step(2), named[r] >= 0);
    }
  });
}

void gather(const Tensor& x, const Tensor& index, Tensor& out) {
  const int64_t width = x.size(3);
  const auto* from = static_cast<const float*>(x.first());
  float* to = out.data<float>();
  for_rows(index, x, [&](int64_t r, int64_t source, bool named) {
    if (named)
      std::copy_n(from + source, width, to + r * width);
    else
      std::fill_n(to + r * width, width, 0.0f);
  });
}

void add(const Tensor& from, const Tensor& index, Tensor& to) {
  const int64_t width = to.size(3);
  const float* rows = from.data<float>();
  auto* sums = static_cast<float*>(to.mutable_first());
  for_rows(index, to, [&](int64_t r, int64_t target, bool named) {
    if (named) add_scaled(rows + r * width, 1.0f, width, sums + target);
  });
}

}  // namespace

const RowGatherBackend kRowGather = {gather, add};

}  // namespace dofla::cpu
