#include "dofla/core/saved_json.h"

#include <string>

#include "dofla/core/error.h"

namespace dofla {

void require_format(const Json& json, std::string_view format, int64_t version,
                    std::string_view where) {
  const auto has = [&](const char* field) { return json.is_object() && json.contains(field); };
  if (!has("format") || json["format"] != format)
    fail("{}: expected a file with \"format\": \"{}\", found {}", where, format,
         has("format") ? excerpt(json["format"]) : "none");
  const bool whole = has("version") && json["version"].is_number_unsigned();
  if (!whole || json["version"].get<uint64_t>() == 0)
    fail("{}: version: expected a whole number from 1", where);
  const auto found = json["version"].get<uint64_t>();
  if (found > static_cast<uint64_t>(version))
    fail(
        "{}: written by a newer dofla (version {} of the format, this one reads up to {}): update "
        "dofla, or make the file again",
        where, found, version);
}

const Json& array_field(const Json& json, std::string_view field, int64_t size,
                        std::string_view where) {
  if (!json.is_object() || !json.contains(field)) fail("{}: {}: missing", where, field);
  const Json& found = *json.find(field);
  if (!found.is_array() || found.size() != static_cast<size_t>(size))
    fail("{}: {}: expected {} entries, found {}", where, field, size,
         found.is_array() ? std::to_string(found.size()) : excerpt(found));
  return found;
}

}  // namespace dofla
