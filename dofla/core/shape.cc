#include "dofla/core/shape.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "dofla/core/error.h"

namespace dofla {

int64_t element_count(const Shape& shape) {
  int64_t count = 1;
  for (int64_t extent : shape) {
    require(extent >= 0, "negative extent in shape {}", shape);
    require(!__builtin_mul_overflow(count, extent, &count), "shape {} has too many elements",
            shape);
  }
  return count;
}

std::string to_string(const Shape& shape) {
  return fmt::format("[{}]", fmt::join(shape, ", "));
}

}  // namespace dofla
