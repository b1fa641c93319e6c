// The JSON files that one stage saves for the next: {"format": "dofla.…", "version": n, …}.
#pragma once

#include <cstdint>
#include <string_view>

#include "dofla/core/json.h"

namespace dofla {

// Throws Error "where: …" unless the file says that it has this format, in a version from 1 to
// `version`.
void require_format(const Json& json, std::string_view format, int64_t version,
                    std::string_view where);

// The array json[field]. Throws Error "where: field: …" unless it is there with `size` entries.
const Json& array_field(const Json& json, std::string_view field, int64_t size,
                        std::string_view where);

}  // namespace dofla
