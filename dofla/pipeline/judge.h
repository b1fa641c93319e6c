// What came of a distillation, on text that it was not trained on.
#pragma once

#include "dofla/pipeline.h"

namespace dofla {

// Fills in the comparison with the teacher, the controls, the floor of the training losses and what
// every layer adds. Attention of the teacher and the student is exchanged meanwhile.
void judge(const Transformer& original, Transformer& teacher,  // in the student's coordinates
           Transformer& student, const DistillText& text, const DistillOptions& options,
           const Progress& progress, Distilled& result);

}  // namespace dofla
