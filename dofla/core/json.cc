#include "dofla/core/json.h"

#include "dofla/core/error.h"

namespace dofla {

Json parse_json(std::string_view text, std::string_view where) {
  constexpr int kDeepest = 64;
  const auto guard = [&](int depth, Json::parse_event_t, const Json&) {
    if (depth > kDeepest) fail("{}: JSON nested deeper than {}", where, kDeepest);
    return true;
  };
  try {
    return Json::parse(text, guard);
  } catch (const Json::exception& error) {
    // The library's text starts with an id in brackets that means nothing to a user.
    std::string_view reason = error.what();
    if (const size_t end = reason.find("] "); end != reason.npos) reason.remove_prefix(end + 2);
    fail("{}: not valid JSON: {}", where, reason);
  }
}

Json load_json(const fs::path& path) { return parse_json(read_text(path), path.string()); }

}  // namespace dofla
