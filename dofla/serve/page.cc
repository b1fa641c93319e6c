#include "dofla/serve/page.h"

#include "dofla/serve/page_assets.h"

namespace dofla {

std::optional<HttpResponse> page_response(std::string_view path) {
  HttpResponse out;
  if (path == "/") {
    out.body = kServePage;
    out.type = "text/html; charset=utf-8";
  } else if (path == "/page.css") {
    out.body = kServeStyle;
    out.type = "text/css; charset=utf-8";
  } else if (path == "/page.js") {
    out.body = kServeScript;
    out.type = "text/javascript; charset=utf-8";
  } else {
    return std::nullopt;
  }
  out.fields = {{"Cache-Control", "no-cache"},
                {"Content-Security-Policy",
                 "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
                 "img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"},
                {"Referrer-Policy", "no-referrer"}};
  return out;
}

}  // namespace dofla
