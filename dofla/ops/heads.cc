#include "dofla/ops/heads.h"

#include "dofla/ops/cpu/heads.h"
#include "dofla/ops/cuda/heads.h"

namespace dofla {

Tensor view_heads(const Tensor& rows, HeadColumns columns, int64_t batch, int64_t heads,
                  int64_t head_size) {
  require(rows.rank() == 2 && batch > 0 && rows.size(0) % batch == 0,
          "heads: {} rows for a batch of {}", to_string(rows.shape()), batch);
  const int64_t tokens = rows.size(0) / batch, width = rows.size(1);
  require(columns.offset >= 0 && columns.offset + (heads - 1) * columns.stride + head_size <= width,
          "heads: the last of {} ends past column {}", heads, width);
  return rows.view({batch, heads, tokens, head_size}, columns.offset,
                   {tokens * width, columns.stride, width, 1});
}

void copy_heads(const Tensor& from, Tensor& to) {
  require(from.rank() == 4, "copy_heads: expected [B, H, T, D], found {}", to_string(from.shape()));
  require_shape(to, from.shape(), "copy_heads: to");
  require(from.dtype() == to.dtype() && from.device() == to.device(),
          "copy_heads: from {} to {}, or between devices", name(from.dtype()), name(to.dtype()));
  require(from.step(3) == 1 && to.step(3) == 1, "copy_heads: the vectors have gaps");
  const auto run = to.device().is_cuda() ? cuda::copy_heads : cpu::copy_heads;
  run(from, to);
}

Tensor contiguous_heads(const Tensor& heads) {
  if (!heads.is_view()) return heads;
  Tensor out(heads.shape(), heads.dtype(), heads.device());
  copy_heads(heads, out);
  return out;
}

Tensor gather_heads(const Tensor& rows, HeadColumns columns, int64_t batch, int64_t heads,
                    int64_t head_size) {
  return contiguous_heads(view_heads(rows, columns, batch, heads, head_size));
}

void scatter_heads(const Tensor& heads, HeadColumns columns, Tensor& rows) {
  require(heads.rank() == 4, "scatter_heads: expected [B, H, T, D], found {}",
          to_string(heads.shape()));
  Tensor to = view_heads(rows, columns, heads.size(0), heads.size(1), heads.size(3));
  copy_heads(heads, to);
}

void rotate(Tensor& x, const std::vector<float>& frequencies, int64_t first_position) {
  require(x.rank() == 4, "rotate: expected [B, H, T, D], found {}", to_string(x.shape()));
  require(2 * static_cast<int64_t>(frequencies.size()) <= x.size(3),
          "rotate: {} frequencies for heads of {}", frequencies.size(), x.size(3));
  require(x.step(3) == 1, "rotate: the vectors have gaps");
  const auto run = x.device().is_cuda() ? cuda::rotate : cpu::rotate;
  run(x, frequencies, first_position);
}

}  // namespace dofla
