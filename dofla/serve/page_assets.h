// page.html, page.css and page.js, built in as text.
#pragma once

#include <string_view>

namespace dofla {

extern const std::string_view kServePage;
extern const std::string_view kServeStyle;
extern const std::string_view kServeScript;

}  // namespace dofla
