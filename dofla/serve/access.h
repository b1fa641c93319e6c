// Who may ask: those who know the key, or, without one, programs and pages of this machine only.
#pragma once

#include <string>

#include "dofla/serve/http_server.h"

namespace dofla {

// Throws ApiError 401 or 403. The page itself and /health are for everyone.
// Without a key, a web page from elsewhere that a browser on this machine shows could ask a server
// on the loopback address: by its own origin, or by a name of its own for that address (DNS
// rebinding). Both show in the header.
void require_access(const HttpRequest& request, const std::string& api_key);

// Takes as long for a wrong text as for a right one.
bool equal_in_constant_time(const std::string& a, const std::string& b);

}  // namespace dofla
