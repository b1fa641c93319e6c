// What `dofla distill` tells at its end: a table or a JSON object.
#pragma once

#include <string>

#include "cli/output.h"
#include "dofla/pipeline.h"

namespace dofla::cli {

std::string distill_table(const Checkpoint& teacher, const Distilled& result, double seconds);
OrderedJson distill_json(const Distilled& result, double seconds);

}  // namespace dofla::cli
