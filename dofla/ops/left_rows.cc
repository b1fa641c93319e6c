#include "dofla/ops/left_rows.h"

#include "dofla/ops/heads.h"
#include "dofla/ops/row_gather.h"

namespace dofla {

std::vector<int64_t> first_left(const std::vector<HeadCache>& caches) {
  std::vector<int64_t> first;
  first.reserve(caches.size());
  for (const HeadCache& cache : caches) first.push_back(cache.first_left());
  return first;
}

Tensor rows_from(const std::vector<int64_t>& first, int64_t end, int64_t rows, const Device& device,
                 int32_t after) {
  Tensor index({1, std::ssize(first), rows}, DType::kI32);
  int32_t* to = index.data<int32_t>();
  for (const int64_t begin : first)
    for (int64_t r = 0; r < rows; ++r)
      *to++ = begin + r < end ? static_cast<int32_t>(begin + r) : after;
  return index.to(device);
}

Tensor gather_tokens(const Tensor& rows, const Tensor& index) {
  const Tensor heads = gather_rows(heads_of_rows(rows, 0, rows.size(1)), index);
  Tensor out({rows.size(0), index.size(2), rows.size(2), rows.size(3)}, rows.dtype(),
             rows.device());
  Tensor to = heads_of_rows(out, 0, out.size(1));
  copy_heads(heads, to);
  return out;
}

Left left_of(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& order,
             const std::vector<int64_t>& first) {
  Left left;
  left.queries = rows_from(first, q.size(2), order.size(2), q.device());
  left.q = gather_rows(q, left.queries);
  left.k = gather_rows(k, order);
  left.v = gather_rows(v, order);
  return left;
}

}  // namespace dofla
