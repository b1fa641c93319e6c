// The passages where students are furthest from their teacher, with what both say there.
#pragma once

#include <string>

#include "dofla/fidelity/fidelity.h"

namespace dofla {

std::string passages_html(const FidelityReport& report);  // "" where there are none

}  // namespace dofla
