// JSON from files that we did not write: depth, encoding and size are checked, and every error
// names the file.
#pragma once

#include <string_view>

#include <nlohmann/json.hpp>

#include "dofla/core/file.h"

namespace dofla {

using Json = nlohmann::json;

// Parses strict UTF-8 JSON nested at most 64 deep. Throws Error "where: …".
Json parse_json(std::string_view text, std::string_view where);
Json load_json(const fs::path& path);

}  // namespace dofla
