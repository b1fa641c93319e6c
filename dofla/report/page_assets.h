// page.css and page.js, built in as text.
#pragma once

#include <string_view>

namespace dofla {

extern const std::string_view kPageStyle;
extern const std::string_view kPageScript;

}  // namespace dofla
