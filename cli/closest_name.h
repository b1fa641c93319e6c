// What the user may have meant by a word that nothing has as its name.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace dofla::cli {

// The name that takes the fewest letters added, left out, replaced or swapped with a neighbour, if
// these are at most two and fewer than half of the word's; else "".
std::string closest_name(std::string_view word, const std::vector<std::string>& names);

}  // namespace dofla::cli
