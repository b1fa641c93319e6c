#include "dofla/ops/row_gather.h"

namespace dofla {
namespace {

const RowGatherBackend& row_gather_backend(const Tensor& x) {
  return x.device().is_cuda() ? cuda::kRowGather : cpu::kRowGather;
}

void require_index(const Tensor& x, const Tensor& index) {
  require(x.rank() == 4 && index.rank() == 3 && index.dtype() == DType::kI32 &&
              (index.size(0) == 1 || index.size(0) == x.size(0)) && index.size(1) > 0 &&
              x.size(1) % index.size(1) == 0 && index.device() == x.device(),
          "rows: an index {} for heads {}", to_string(index.shape()), to_string(x.shape()));
}

}  // namespace

Tensor gather_rows(const Tensor& x, const Tensor& index) {
  require_index(x, index);
  Tensor out({x.size(0), x.size(1), index.size(2), x.size(3)}, x.dtype(), x.device());
  if (out.count() > 0) row_gather_backend(x).gather(x, index, out);
  return out;
}

void add_rows(const Tensor& from, const Tensor& index, Tensor& to) {
  require_index(to, index);
  require_shape(from, {to.size(0), to.size(1), index.size(2), to.size(3)}, "rows to add");
  require(from.dtype() == to.dtype() && from.device() == to.device(),
          "rows: cannot add {} to {}, or between devices", name(from.dtype()), name(to.dtype()));
  if (from.count() > 0) row_gather_backend(to).add(from, index, to);
}

}  // namespace dofla
