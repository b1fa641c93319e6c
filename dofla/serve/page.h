// The page at /, its style and its script: built in, and nothing from outside.
#pragma once

#include <optional>
#include <string_view>

#include "dofla/serve/http_server.h"

namespace dofla {

// What stands at /, /page.css or /page.js; nothing for another path.
std::optional<HttpResponse> page_response(std::string_view path);

}  // namespace dofla
