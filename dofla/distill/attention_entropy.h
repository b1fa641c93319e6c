// The entropy of a teacher's attention: what the softmax loss of a layer cannot fall below
// (docs/distill.md, "The floor").
#pragma once

#include <vector>

#include "dofla/model/transformer.h"
#include "dofla/ops/feature_loss.h"

namespace dofla {

// Of every layer, in nats: the mean over heads, windows and queries of the entropy of a query's
// attention to the keys that the mask keeps. Of long windows a part of the queries is taken, evenly
// spread.
std::vector<double> attention_entropy(const Transformer& teacher,
                                      const std::vector<std::vector<int64_t>>& windows,
                                      PairMask mask);

}  // namespace dofla
