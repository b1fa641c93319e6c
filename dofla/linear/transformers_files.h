// The Python files of dofla/linear/transformers, built in as text.
#pragma once

#include <array>
#include <string_view>
#include <utility>

namespace dofla {

// Names and texts.
extern const std::array<std::pair<std::string_view, std::string_view>, 5> kTransformersFiles;

}  // namespace dofla
