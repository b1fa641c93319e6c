// The loss that linear attention adds: exactly for a layer, by one backward for the heads of a
// layer (docs/sensitivity.md).
#pragma once

#include <optional>
#include <string_view>
#include <vector>

#include "dofla/core/progress.h"
#include "dofla/distributed/group.h"
#include "dofla/features/feature_set.h"
#include "dofla/model/transformer.h"

namespace dofla {

// The mean next-token loss of equally long windows.
double mean_loss(const Transformer& model, const Tensor& ids,  // [B, T], I64
                 const Group& group = {});

struct AddedLossOptions {
  std::string_view stage = "loss added";  // what progress is told of
  // Of every window the last so many tokens count; left out, all but the first.
  std::optional<int64_t> judged = {};
  // What all other layers have meanwhile; left out, their softmax attention.
  const FeatureSet* others = nullptr;
};

// What every layer adds to the teacher's loss when it alone has these features and the others keep
// their softmax attention, for every set: as a divergence, which needs far fewer windows than the
// difference of two losses (docs/sensitivity.md): [sets, layers]. One forward a layer and set, from
// that layer on; 0 for a layer without features. The teacher's attention is exchanged meanwhile and
// its own again when this returns. Ranks share the windows here and below, and all have the result.
std::vector<std::vector<double>> loss_added_by_layers(Transformer& teacher,
                                                      const std::vector<FeatureSet>& sets,
                                                      const Tensor& ids,  // [B, T], I64
                                                      const AddedLossOptions& options = {},
                                                      const Progress& progress = {},
                                                      const Group& group = {});

// What every head contributes to that of its layer, for several sets of features at once: shares,
// [layers, heads, sets], that add up to 1 over the heads of a layer. One forward and backward of
// the teacher a window. Query heads that share their features count as one, as do
// those of a key head where a set has exact keys alone.
std::vector<std::vector<std::vector<double>>> head_shares(Transformer& teacher,
                                                          const std::vector<FeatureSet>& sets,
                                                          const Tensor& ids,  // [B, T], I64
                                                          const Progress& progress = {},
                                                          const Group& group = {});

}  // namespace dofla
