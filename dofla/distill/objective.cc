#include "dofla/distill/objective.h"

#include "dofla/core/error.h"

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
    forward.observer = [&](int64_t layer, const Tensor& q, const Tensor& k, const Tensor&) {
      const Features& of = features.layers[static_cast<size_t>(layer)];
      if (!of.empty()) take(layer, feature_loss(q, k, of, options));
    };
    teacher.forward(ids, forward);
  };
  return objective;
}

}  // namespace dofla
