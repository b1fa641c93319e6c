#include "dofla/distill/objective.h"

#include <limits>

#include "dofla/core/error.h"
#include "dofla/distill/layer_target.h"

namespace dofla {

Objective layerwise_objective(const Transformer& teacher, const LayerwiseLoss& loss) {
  Objective objective;
  // The error of an output cannot run away, and batches in which little leaves have hardly any.
  if (std::holds_alternative<OutputLoss>(loss))
    objective.runaway = std::numeric_limits<double>::infinity();
  // The largest pair of a sequence sets the scale of l2: batches differ by far more than tenfold.
  const auto* pairs = std::get_if<FeatureLossOptions>(&loss);
  if (pairs != nullptr && pairs->kind == FeatureLossKind::kL2) objective.runaway = 100;
  objective.run = [&teacher, loss](const Tensor& ids, const FeatureSet& features,
                                   const Objective::Take& take) {
    require(static_cast<int64_t>(features.layers.size()) == teacher.config().layers,
            "features for {} layers, the teacher has {}", features.layers.size(),
            teacher.config().layers);
    const auto of = [&](int64_t layer) -> const Features& {
      return features.layers[static_cast<size_t>(layer)];
    };
    each_target(
        teacher, ids, features.exact, loss, [&](int64_t layer) { return !of(layer).empty(); },
        [&](int64_t layer, const LayerTarget& target) { take(layer, target.loss(of(layer))); });
  };
  return objective;
}

}  // namespace dofla
