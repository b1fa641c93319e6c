// A sequence of tokens by their numbers, and as a model takes it.
#pragma once

#include <cstdint>
#include <vector>

#include "dofla/core/tensor.h"

namespace dofla {

using TokenIds = std::vector<int64_t>;

// [1, T] in I64.
Tensor to_tensor(const TokenIds& ids);

}  // namespace dofla
