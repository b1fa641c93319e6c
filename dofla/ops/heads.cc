#include "dofla/ops/heads.h"

#include "dofla/ops/cpu/heads.h"

namespace dofla {

Tensor gather_heads(const Tensor& rows, HeadColumns columns, int64_t batch, int64_t heads,
                    int64_t head_size) {
  require(rows.rank() == 2 && batch > 0 && rows.size(0) % batch == 0,
          "gather_heads: {} rows for a batch of {}", to_string(rows.shape()), batch);
  require(columns.offset + (heads - 1) * columns.stride + head_size <= rows.size(1),
          "gather_heads: the last head ends past column {}", rows.size(1));
  Tensor out({batch, heads, rows.size(0) / batch, head_size});
  cpu::gather_heads(rows, columns, out);
  return out;
}

void scatter_heads(const Tensor& heads, HeadColumns columns, Tensor& rows) {
  require(heads.rank() == 4 && rows.rank() == 2 && rows.size(0) == heads.size(0) * heads.size(2),
          "scatter_heads: heads {} into rows {}", to_string(heads.shape()),
          to_string(rows.shape()));
  require(columns.offset + (heads.size(1) - 1) * columns.stride + heads.size(3) <= rows.size(1),
          "scatter_heads: the last head ends past column {}", rows.size(1));
  cpu::scatter_heads(heads, columns, rows);
}

void rotate(Tensor& x, const std::vector<float>& frequencies, int64_t first_position) {
  require(x.rank() == 4, "rotate: expected [B, H, T, D], found {}", to_string(x.shape()));
  require(2 * static_cast<int64_t>(frequencies.size()) <= x.size(3),
          "rotate: {} frequencies for heads of {}", frequencies.size(), x.size(3));
  cpu::rotate(x, frequencies, first_position);
}

}  // namespace dofla
