#include "dofla/model/token_ids.h"

#include <algorithm>

namespace dofla {

Tensor to_tensor(const TokenIds& ids) {
  Tensor tensor({1, static_cast<int64_t>(ids.size())}, DType::kI64);
  std::copy(ids.begin(), ids.end(), tensor.data<int64_t>());
  return tensor;
}

}  // namespace dofla
