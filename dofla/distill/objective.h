// What features are trained on: something that turns a batch of text into losses and gradients of
// the features of every layer.
#pragma once

#include <functional>

#include "dofla/distill/loss.h"
#include "dofla/features/feature_set.h"
#include "dofla/model/transformer.h"

namespace dofla {

struct Objective {
  // Takes the loss and gradients of a layer. The layer's features may have changed when it returns.
  using Take = std::function<void(int64_t layer, const FeatureLoss& loss)>;

  // Calls `take` once for every layer, in any order.
  std::function<void(const Tensor& ids,  // [B, T], I64
                     const FeatureSet& features, const Take& take)>
      run;
  // Whether every layer has a loss of its own; else all have the same.
  bool per_layer = true;
  // A loss so many times that of the first step has run away.
  double runaway = 10;
};

// Every layer learns from the teacher's own queries, keys and values, all layers in one pass, none
// waiting for another. The teacher must live as long as the objective.
Objective layerwise_objective(const Transformer& teacher, const LayerwiseLoss& loss);

}  // namespace dofla
