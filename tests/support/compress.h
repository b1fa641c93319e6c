// Compressed copies of a text, as the zstd and gzip programs would write them.
#pragma once

#include <string>
#include <string_view>

namespace dofla::test {

std::string zstd(std::string_view text);
std::string gzip(std::string_view text);

}  // namespace dofla::test
