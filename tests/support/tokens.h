// The tokens of a text, as strings.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "dofla/checkpoint/tokenizer.h"

namespace dofla::test {

inline std::vector<std::string> tokens(const Tokenizer& tokenizer, std::string_view text) {
  std::vector<std::string> out;
  for (const int64_t id : tokenizer.encode(text)) out.push_back(tokenizer.token(id).value());
  return out;
}

}  // namespace dofla::test
