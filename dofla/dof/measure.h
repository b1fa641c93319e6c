// The degrees-of-freedom stage: a teacher and some text in, a DofTable out (the paper's
// Algorithm 1 without its last step).
#pragma once

#include <cstdint>
#include <vector>

#include "dofla/core/progress.h"
#include "dofla/distributed/group.h"
#include "dofla/dof/dof_table.h"
#include "dofla/dof/sample.h"
#include "dofla/features/feature_map.h"
#include "dofla/model/transformer.h"

namespace dofla {

// Sequences of a text that degrees of freedom are measured on, where nothing else is said.
inline constexpr int64_t kDofSequences = 16;

struct DofOptions {
  int64_t samples = 1024;  // J: queries and keys of a head, in every draw
  int64_t draws = 8;       // R, independent of each other: the estimate is their mean
  GramScale gram = GramScale::kTrace;
  double lambda = kDefaultLambda;
  FeatureMap features = kDefaultFeatureMap;  // of the heads that these have features for
  bool errors = false;                       // measure those of random features, too
};

// Runs the teacher over the sequences, samples every head's queries and keys, and finds the
// spectra of their Gram matrices; where the teacher is on a GPU, their degrees of freedom at λ and
// at every power of two from 2⁻¹⁶ to 1. Throws Error if λ is not positive, if there are fewer
// vectors than samples asked for, or if a sequence is longer than the teacher's context. Ranks
// share the sequences and the heads, and all have the table.
DofTable measure_dof(const Transformer& teacher,
                     const std::vector<std::vector<int64_t>>& sequences,  // token ids
                     const DofOptions& options, uint64_t seed = 0, const Progress& progress = {},
                     const Group& group = {});

// The same of a checkpoint's model in these coordinates, which are chosen by the same sequences.
DofTable measure_dof(const Checkpoint& checkpoint, Coordinates coordinates,
                     const std::vector<std::vector<int64_t>>& sequences, const DofOptions& options,
                     uint64_t seed = 0, const Device& device = {}, const Progress& progress = {},
                     const Group& group = {});

// The same from samples that were taken already, on the CPU and on a GPU. `table` comes with all
// but its spectra or values.
void add_spectra(const QueryKeySampler& sampler, DofTable& table, const Progress& progress = {},
                 const Group& group = {});
void add_values(const QueryKeySampler& sampler, DofTable& table, const Progress& progress = {},
                const Group& group = {});

}  // namespace dofla
