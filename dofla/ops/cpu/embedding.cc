#include "dofla/ops/cpu/embedding.h"

#include "dofla/core/parallel.h"
#include "dofla/ops/cpu/weight_rows.h"

namespace dofla::cpu {
namespace {

template <class T>
void copy_rows(const Tensor& table, const Tensor& ids, Tensor& out) {
  const int64_t width = table.size(1);
  float* to = out.data<float>();
  parallel_rows(ids.count(), [&](int64_t i) {
    widen(table.data<T>() + ids.data<int64_t>()[i] * width, width, to + i * width);
  });
}

}  // namespace

void embed(const Tensor& table, const Tensor& ids, Tensor& out) {
  switch (table.dtype()) {
    case DType::kF32:
      return copy_rows<float>(table, ids, out);
    case DType::kF16:
      return copy_rows<Float16>(table, ids, out);
    case DType::kBF16:
      return copy_rows<BFloat16>(table, ids, out);
    default:
      throw std::invalid_argument("embed: the table is not of a float type");
  }
}

}  // namespace dofla::cpu
