#include "dofla/distill/objective.h"

#include "dofla/core/error.h"
#include "dofla/distill/pairs_to_learn.h"

namespace dofla {

Objective layerwise_objective(const Transformer& teacher, const FeatureLossOptions& options) {
  Objective objective;
  // The largest pair of a sequence sets the scale of l2: batches differ by far more than tenfold.
  if (options.kind == FeatureLossKind::kL2) objective.runaway = 100;
  objective.run = [&teacher, options](const Tensor& ids, const FeatureSet& features,
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
      take(layer,
           feature_loss(pairs_to_learn(q, k, v, exact_keys_of(features.exact, at)), of, options));
    };
    teacher.forward(ids, forward);
  };
  return objective;
}

}  // namespace dofla
