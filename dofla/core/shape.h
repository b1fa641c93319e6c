// A tensor's extents, outermost first.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace dofla {

using Shape = std::vector<int64_t>;

// The number of elements. Throws std::invalid_argument on a negative extent or when the product
// does not fit in an int64.
int64_t element_count(const Shape& shape);

std::string to_string(const Shape& shape);  // "[2, 3, 70]"

}  // namespace dofla
