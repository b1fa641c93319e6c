// Which key heads a model recalls with: a teacher and windows that ask for what stood far back in,
// a RecallOrder out.
#pragma once

#include "dofla/core/progress.h"
#include "dofla/distributed/group.h"
#include "dofla/features/exact_key_set.h"
#include "dofla/model/transformer.h"
#include "dofla/sensitivity/recall_order.h"

namespace dofla {

// From the keys of a plan without features to all keys in every key head, the heads that save most
// first: one at the beginning, then as many at a time as have all keys already. The teacher's
// attention is exchanged meanwhile and its own again when this returns. Ranks share the windows,
// and all have the result.
RecallOrder measure_recall(Transformer& teacher, const Tensor& windows,  // [B, T], I64
                           const ExactKeySet& keys,                      // of every layer
                           const Progress& progress = {}, const Group& group = {});

}  // namespace dofla
