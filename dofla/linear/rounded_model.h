// Model folders whose weights are rounded to 8 bits: half of what 16-bit ones take on disk, in
// memory and, when tokens are generated one at a time, in time.
#pragma once

#include "dofla/checkpoint/checkpoint.h"

namespace dofla {

// Writes a model, softmax or linear, into an empty folder: its matrices as with_rounded_weights()
// has them, features and everything else as they are. config.json says "weights": "int8" and has
// the form of a student's, so that tools that would take whole numbers for weights refuse the
// folder. Throws Error if its weights are rounded already.
void write_rounded_model(const fs::path& folder, const Checkpoint& source);

}  // namespace dofla
