#include "dofla/ops/row_gather.h"

#include <algorithm>

#include "dofla/core/parallel.h"
#include "dofla/ops/cpu/vector_rows.h"

namespace dofla::cpu {
namespace {

// Calls `row(where in the index, where in heads, named row)` for the rows of all heads; `rows` is
// how many a head has.
template <class Row>
void for_rows(const Tensor& index, int64_t batch, int64_t heads, int64_t rows, const Row& row) {
  const int64_t count = index.size(2), shared = heads / index.size(1);
  parallel_for(batch * heads, [&](int64_t head) {
    const int64_t sequence = index.size(0) == 1 ? 0 : head / heads;
    const int32_t* named =
        index.data<int32_t>() + (sequence * index.size(1) + head % heads / shared) * count;
    for (int64_t r = 0; r < count; ++r) {
      require(named[r] >= -1 && named[r] < rows, "rows: {} of {}", named[r], rows);
      row(head * count + r, head * rows + named[r], named[r]);
    }
  });
}

void gather(const Tensor& x, const Tensor& index, Tensor& out) {
  const int64_t width = x.size(3);
  const float* from = x.data<float>();
  float* to = out.data<float>();
  for_rows(index, x.size(0), x.size(1), x.size(2), [&](int64_t r, int64_t source, int32_t named) {
    if (named < 0)
      std::fill_n(to + r * width, width, 0.0f);
    else
      std::copy_n(from + source * width, width, to + r * width);
  });
}

void add(const Tensor& from, const Tensor& index, Tensor& to) {
  const int64_t width = to.size(3);
  const float* rows = from.data<float>();
  float* sums = to.data<float>();
  for_rows(index, to.size(0), to.size(1), to.size(2),
           [&](int64_t r, int64_t target, int32_t named) {
             if (named >= 0) add_scaled(rows + r * width, 1.0f, width, sums + target * width);
           });
}

}  // namespace

const RowGatherBackend kRowGather = {gather, add};

}  // namespace dofla::cpu
