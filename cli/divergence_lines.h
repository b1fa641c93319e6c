// How far a student is from its teacher, as evaluate, distill and finetune tell it.
#pragma once

#include <string>

#include "dofla/fidelity/divergence.h"

namespace dofla::cli {

// Lines of a name, filled up to so many columns, and what there is to say: all but the losses.
std::string divergence_lines(const Divergence& divergence, int columns);

}  // namespace dofla::cli
