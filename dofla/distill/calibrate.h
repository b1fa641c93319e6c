// How much features weigh beside exact keys, chosen head by head once they are trained: with the
// best shift of its log α a head's output is never further from softmax attention's, on the text
// that chooses, than that of its exact keys alone (docs/hybrid.md, "What features weigh").
#pragma once

#include <span>

#include "dofla/core/progress.h"
#include "dofla/data/batches.h"
#include "dofla/distributed/group.h"
#include "dofla/features/feature_set.h"
#include "dofla/model/transformer.h"

namespace dofla {

// What log α may be shifted by. The first is as good as no features, and still has a gradient to
// come back by.
inline constexpr double kShifts[] = {-20, -4, -3, -2, -1.5, -1, -0.5, 0, 0.5, 1};

// Windows to choose by: of the passes over a text that training reads (ShuffledBatches) those after
// the first `read`.
Tensor windows_after(const WindowSet& text, int64_t read, int64_t count, uint64_t seed);

// Shifts log α of every head of every set, which all have the same exact keys. The teacher runs
// once for all. Layers without exact keys or without features stay as they are. Ranks share the
// windows, and all have the result.
void calibrate(const Transformer& teacher, const Tensor& ids,  // [B, T], I64
               std::span<FeatureSet> sets, const Progress& progress = {}, const Group& group = {});

}  // namespace dofla
