#include "dofla/ops/cuda/heads.h"

#include "dofla/ops/cuda/head_kernels.h"
#include "dofla/ops/cuda/tensors.h"

namespace dofla::cuda {
namespace {

HeadLayout layout_of(const Tensor& rows, HeadColumns columns, const Tensor& heads) {
  return {element_of(rows), heads.size(0), heads.size(1),  heads.size(2),
          heads.size(3),    rows.size(1),  columns.offset, columns.stride};
}

}  // namespace

void gather_heads(const Tensor& rows, HeadColumns columns, Tensor& out) {
  cuda_check(launch_gather_heads(layout_of(rows, columns, out), rows.raw(), out.mutable_raw(),
                                 stream_of(rows)),
             "gather heads");
}

void scatter_heads(const Tensor& heads, HeadColumns columns, Tensor& rows) {
  cuda_check(launch_scatter_heads(layout_of(rows, columns, heads), heads.raw(), rows.mutable_raw(),
                                  stream_of(rows)),
             "scatter heads");
}

void rotate(Tensor& x, const std::vector<float>& frequencies, int64_t first_position) {
  const int64_t pairs = static_cast<int64_t>(frequencies.size());
  Tensor table({pairs});
  std::copy(frequencies.begin(), frequencies.end(), table.data<float>());
  const Tensor there = table.to(x.device());
  const RotateArguments arguments = {element_of(x), x.count() / x.size(3), x.size(2),
                                     x.size(3),     first_position,        pairs,
                                     floats(there)};
  cuda_check(launch_rotate(arguments, x.mutable_raw(), stream_of(x)), "rotate");
}

}  // namespace dofla::cuda
