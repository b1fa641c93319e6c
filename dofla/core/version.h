// The version of the library and of the files it writes.
#pragma once

#include <string_view>

namespace dofla {

std::string_view version();  // "0.1.0"

}  // namespace dofla
