// What `dofla distill` tells at its end: a table, a JSON object, and files for the model's folder.
#pragma once

#include <string>

#include "cli/output.h"
#include "dofla/pipeline.h"

namespace dofla::cli {

std::string distill_table(const Checkpoint& teacher, const DistillOptions& job,
                          const Distilled& result, double seconds);
OrderedJson distill_json(const DistillOptions& job, const Distilled& result, double seconds);

// plan.json, dof.json (where it was measured) and report.html.
void write_distill_report(const fs::path& folder, const Checkpoint& teacher,
                          const DistillOptions& job, const Distilled& result);

}  // namespace dofla::cli
