// How far random features are from the kernel of every head, measured on the samples that its
// degrees of freedom were measured on: what the theorem bounds, beside the bound.
#pragma once

#include <cstdint>
#include <vector>

#include "dofla/core/progress.h"
#include "dofla/distributed/group.h"
#include "dofla/dof/dof_table.h"
#include "dofla/dof/leverage.h"
#include "dofla/dof/sample.h"

namespace dofla {

// The numbers of features that errors are measured for.
inline constexpr int64_t kErrorLadder[] = {8, 32, 128, 512};

// Of one head. Features are drawn once from each density, and M are the first M of them.
FeatureErrors feature_errors(const RidgeKernel& kernel, const std::vector<int64_t>& ladder,
                             int64_t head_size, uint64_t seed, uint64_t stream);

// Of every head, on the first draw of its samples, at the table's λ. Ranks share the heads.
void add_errors(const QueryKeySampler& sampler, DofTable& table, const Progress& progress = {},
                const Group& group = {});

}  // namespace dofla
