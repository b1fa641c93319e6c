// What UTF-8 text is made of.
#pragma once

#include <cstdint>
#include <string_view>

namespace dofla {

// The offset of the first byte that is not part of valid UTF-8, or npos.
size_t find_invalid_utf8(std::string_view text);

int64_t count_characters(std::string_view text);  // code points of valid UTF-8

}  // namespace dofla
