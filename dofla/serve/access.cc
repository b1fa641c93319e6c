#include "dofla/serve/access.h"

#include <string_view>

#include "dofla/core/json.h"
#include "dofla/serve/api_error.h"

namespace dofla {
namespace {

// The name in "name:port" or "[::1]:port".
std::string_view without_port(std::string_view host) {
  if (host.starts_with('[')) return host.substr(0, host.find(']') + 1);
  return host.substr(0, host.find(':'));
}

bool names_this_machine(std::string_view host) {
  const std::string_view name = without_port(host);
  return name == "localhost" || name == "127.0.0.1" || name == "[::1]";
}

}  // namespace

bool equal_in_constant_time(const std::string& a, const std::string& b) {
  unsigned differs = a.size() == b.size() ? 0 : 1;
  for (size_t i = 0; i < a.size(); ++i)
    differs |= static_cast<unsigned>(a[i] ^ (b.empty() ? '\0' : b[i % b.size()]));
  return differs == 0;
}

void require_access(const HttpRequest& request, const std::string& api_key) {
  if (!api_key.empty()) {
    for (const char* open : {"/", "/page.css", "/page.js", "/health"})
      if (request.path == open) return;
    const std::string& given = request.authorization;
    const std::string key = given.starts_with("Bearer ") ? given.substr(7) : "";
    if (!equal_in_constant_time(key, api_key))
      throw ApiError(401, "expected the header Authorization: Bearer KEY with this server's key",
                     {}, "invalid_api_key");
    return;
  }
  if (!names_this_machine(request.host))
    throw ApiError(403,
                   "Host " + printable(request.host) +
                       ": this server has no key and answers only to localhost, 127.0.0.1 or [::1]",
                   {}, "wrong_host");
  const bool elsewhere = !request.origin.empty() && request.origin != "http://" + request.host;
  const bool other_site = request.fetch_site == "cross-site" || request.fetch_site == "same-site";
  if (elsewhere || other_site)
    throw ApiError(403, "web pages from elsewhere may not use a server without a key", {},
                   "wrong_origin");
}

}  // namespace dofla
