#include "dofla/data/utf8.h"

#include <algorithm>

#include <utf8proc.h>

namespace dofla {

size_t find_invalid_utf8(std::string_view text) {
  const auto* bytes = reinterpret_cast<const utf8proc_uint8_t*>(text.data());
  size_t at = 0;
  while (at < text.size()) {
    if (bytes[at] < 0x80) {
      ++at;
      continue;
    }
    utf8proc_int32_t codepoint;
    const auto left = static_cast<utf8proc_ssize_t>(text.size() - at);
    const utf8proc_ssize_t length = utf8proc_iterate(bytes + at, left, &codepoint);
    if (length <= 0) return at;
    at += static_cast<size_t>(length);
  }
  return std::string_view::npos;
}

int64_t count_characters(std::string_view text) {
  const auto begins = [](char byte) { return (static_cast<unsigned char>(byte) & 0xc0) != 0x80; };
  return std::ranges::count_if(text, begins);
}

}  // namespace dofla
