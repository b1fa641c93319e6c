#include "dofla/ops/rows.h"

namespace dofla {
namespace {

const RowsBackend& rows_backend(const Device& device) {
  return device.is_cuda() ? cuda::kRows : cpu::kRows;
}

}  // namespace

void copy_rows(const Tensor& from, const std::vector<RowMove>& moves, Tensor& to) {
  require(from.rank() == 2 && to.rank() == 2 && from.size(1) == to.size(1),
          "copy_rows: from {} to {}", to_string(from.shape()), to_string(to.shape()));
  require(from.device() == to.device(), "copy_rows: the tables are on different devices");
  for (const RowMove& move : moves)
    require(move.from >= 0 && move.from < from.size(0) && move.to >= 0 && move.to < to.size(0),
            "copy_rows: row {} of {} to row {} of {}", move.from, from.size(0), move.to,
            to.size(0));
  rows_backend(to.device()).copy_rows(from, moves, to);
}

}  // namespace dofla
