// The plan of a distillation: measured, made, or given.
#pragma once

#include "dofla/pipeline.h"

namespace dofla {

// Checkpoint → (q, k) → DofTable or SensitivityTable → DimensionPlan: sets these of the result. The
// teacher is in the coordinates that features are to see, as are its weights in `checkpoint`.
void make_plan(const Checkpoint& checkpoint, const Transformer& teacher, const DistillText& text,
               const DistillOptions& options, const Progress& progress, Distilled& result);

// The same options with a plan of the same size for which nothing has to be measured.
DistillOptions without_measuring(const ModelConfig& config, const DistillOptions& options);

}  // namespace dofla
