#include "dofla/ops/row_gather.h"

#include <algorithm>

#include "dofla/core/parallel.h"
#include "dofla/ops/cpu/vector_rows.h"

namespace dofla::cpu {
namespace {

// Calls row(dense, heads, named) for the rows that an index names: where row r of [B, X, n, D]
// lies, where row `named` of `heads` lies, and the name, which may be −1.
template <class Row>
void for_rows(const Tensor& index, const Tensor& heads, const Row& row) {
  require(heads.dtype() == DType::kF32, "rows: expected F32, found {}", name(heads.dtype()));
  const int64_t count = index.size(2), all = heads.size(1), shared = all / index.size(1);
  parallel_for(heads.size(0) * all, [&](int64_t head) {
    const int64_t b = head / all, h = head % all, sequence = index.size(0) == 1 ? 0 : b;
    const int32_t* named = index.data<int32_t>() + (sequence * index.size(1) + h / shared) * count;
    const int64_t at = b * heads.step(0) + h * heads.step(1);
    for (int64_t r = 0; r < count; ++r) {
      require(named[r] >= -1 && named[r] < heads.size(2), "rows: {} of {}", named[r],
              heads.size(2));
      row((head * count + r) * heads.size(3), at + named[r] * heads.step(2), named[r]);
    }
  });
}

void gather(const Tensor& x, const Tensor& index, Tensor& out) {
  const int64_t width = x.size(3);
  const auto* from = static_cast<const float*>(x.first());
  float* to = out.data<float>();
  for_rows(index, x, [&](int64_t dense, int64_t source, int32_t named) {
    if (named < 0)
      std::fill_n(to + dense, width, 0.0f);
    else
      std::copy_n(from + source, width, to + dense);
  });
}

void add(const Tensor& from, const Tensor& index, Tensor& to) {
  const float* rows = from.data<float>();
  auto* sums = static_cast<float*>(to.mutable_first());
  for_rows(index, to, [&](int64_t dense, int64_t target, int32_t named) {
    if (named >= 0) add_scaled(rows + dense, 1.0f, to.size(3), sums + target);
  });
}

}  // namespace

const RowGatherBackend kRowGather = {gather, add};

}  // namespace dofla::cpu
