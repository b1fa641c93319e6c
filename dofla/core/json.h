// JSON from files that we did not write: depth, encoding and size are checked, and every error
// names the file.
#pragma once

#include <string>
#include <string_view>

#include <nlohmann/json.hpp>

#include "dofla/core/file.h"

namespace dofla {

using Json = nlohmann::json;
using OrderedJson = nlohmann::ordered_json;  // fields in the order in which they are set

// Parses strict UTF-8 JSON nested at most 64 deep, no key twice in one object. Throws Error
// "where: …".
Json parse_json(std::string_view text, std::string_view where);
Json load_json(const fs::path& path, Input input = Input::kFile);  // at most 256 MiB

// For messages, which are one line in a terminal: long texts are cut, control characters and
// bytes beyond ASCII are escaped by excerpt, which writes JSON, and replaced by printable.
std::string excerpt(const Json& value);
std::string printable(std::string_view text);

}  // namespace dofla
