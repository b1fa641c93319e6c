#include "dofla/ops/rows.h"

#include <algorithm>

#include "dofla/ops/cuda/row_kernels.h"
#include "dofla/ops/cuda/tensors.h"

namespace dofla::cuda {
namespace {

void copy_rows(const Tensor& from, const std::vector<RowMove>& moves, Tensor& to) {
  const auto count = static_cast<int64_t>(moves.size());
  if (count == 0) return;
  Tensor list({count, 2}, DType::kI64);
  int64_t* next = list.data<int64_t>();
  for (const RowMove& move : moves) *next++ = move.from, *next++ = move.to;
  const Tensor there = list.to(to.device());
  cuda_check(launch_copy_rows(element_of(from), from.raw(), to.size(1),
                              static_cast<const int64_t*>(there.raw()), count, mutable_floats(to),
                              stream_of(to)),
             "copying rows");
}

}  // namespace

const RowsBackend kRows = {.copy_rows = copy_rows};

}  // namespace dofla::cuda
