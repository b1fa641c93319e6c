// A student's folder: everything that distillation leaves behind.
#pragma once

#include "dofla/pipeline.h"

namespace dofla {

// Makes a folder with the model, as write_linear_model() has it, plan.json, dof.json or
// sensitivity.json where that was measured, and report.html. It appears whole or not at all; throws
// Error if there is something of that name already. `provenance` says what else is known of how the
// student was made (a command, file names) and stands beside the settings.
void write_student(const fs::path& folder, const Checkpoint& teacher, const Distilled& result,
                   const Json& provenance = Json::object());

}  // namespace dofla
