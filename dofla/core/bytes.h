// Sizes of memory in words, with decimal units: a MB is a million bytes.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace dofla {

std::string with_bytes_unit(int64_t bytes);  // 11.8 MB

// "3MB", "1.5 MB", "500kB" or plain bytes; nothing for any other text, less than a byte or more
// than 1000 TB.
std::optional<int64_t> read_bytes(std::string_view text);

}  // namespace dofla
