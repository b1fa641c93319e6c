// A budget of bytes, spent on exact keys and features where the loss falls most: of ordinary text,
// and of what stood far back (docs/sensitivity.md, "Memory" and "Recall").
#pragma once

#include "dofla/plan/allocate.h"
#include "dofla/sensitivity/sensitivity_table.h"

namespace dofla {

// What keys and features take of a sequence.
struct UnitBytes {
  int64_t key = 0;      // in every key head of a layer
  int64_t feature = 0;  // in every head of a layer that has features
};
UnitBytes unit_bytes(const SensitivityTable& table);

// The most keys of a layer: at most kMostPlannedKeys, and a block still leaves a window, so that
// features have something to learn.
int64_t most_keys(const SensitivityTable& table);

// The keys of a key head, if all layers have as many and so many features a head: at least the
// fewest that the table's kind of cache can have. Throws Error if not even these and one feature
// a head fit.
int64_t keys_that_fit(const SensitivityTable& table, int64_t memory, int64_t features);

// Every key head begins with a quarter of an equal share of keys, at least the fewest that its kind
// of cache can have, and `least` features. More keys, or one feature more,
// then go where the predicted loss falls most for its bytes, until the memory is spent or nothing
// more would help. No head gets more than most_keys(). By layer all heads of one get the same; by
// head keys come in steps of a quarter, which a large cache needs fewer of. Of the options memory,
// least, by and recall count. Throws Error if the memory does not buy the least, or the table has
// no key ladder or, where a share of recall is given, says nothing of it.
DimensionPlan allocate_memory(const SensitivityTable& table, const AllocateOptions& options);

}  // namespace dofla
