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
    ForwardOptions forward;
    forward.heads_only = true;
    forward.observer = [&](int64_t layer, const Tensor& q, const Tensor& k, const Tensor& v) {
      const auto at = static_cast<size_t>(layer);
      const Features& of = features.layers[at];
      if (of.empty()) return;
      take(layer, LayerTarget(q, k, v, exact_keys_of(features.exact, at), loss).loss(of));
    };
    teacher.forward(ids, forward);
  };
  return objective;
}

}  // namespace dofla
