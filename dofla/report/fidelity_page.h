// Students beside their teacher, as a page and as Markdown.
#pragma once

#include <string>

#include "dofla/fidelity/fidelity.h"

namespace dofla {

struct FidelityAbout {
  std::string command;  // that made the report
  std::string version;
};

std::string render_fidelity_page(const FidelityReport& report, const FidelityAbout& about);
std::string fidelity_markdown(const FidelityReport& report, const FidelityAbout& about);

}  // namespace dofla
