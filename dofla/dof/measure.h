// The degrees-of-freedom stage: a teacher and some text in, a DofTable out (the paper's
// Algorithm 1 without its last step).
#pragma once

#include <cstdint>
#include <vector>

#include "dofla/core/progress.h"
#include "dofla/dof/dof_table.h"
#include "dofla/dof/sample.h"
#include "dofla/model/transformer.h"

namespace dofla {

struct DofOptions {
  SampleOptions sample;
  GramScale gram = GramScale::kTrace;
  double lambda = 0x1p-8;
};

// Runs the teacher over the sequences, samples every head's queries and keys, and finds the
// spectra of their Gram matrices. Throws Error if λ is not positive, if there are fewer vectors
// than samples asked for, or if a sequence is longer than the teacher's context.
DofTable measure_dof(const Transformer& teacher,
                     const std::vector<std::vector<int64_t>>& sequences,  // token ids
                     const DofOptions& options, const Progress& progress = {});

// The same from samples that were taken already. `table` comes with all but its spectra.
void add_spectra(const QueryKeySampler& sampler, DofTable& table, const Progress& progress = {});

}  // namespace dofla
