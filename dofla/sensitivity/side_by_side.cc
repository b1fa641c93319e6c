#include "dofla/sensitivity/side_by_side.h"

#include "dofla/core/error.h"
#include "dofla/distill/pairs_to_learn.h"

namespace dofla {

// A trainer asks its objective for the losses of a batch. Here all but the last first let the next
// trainer take its step, so that the steps nest and the last one runs the teacher for all.
SideBySide::SideBySide(const Transformer& teacher, std::vector<FeatureSet> starts,
                       const FeatureLossOptions& loss, const TrainOptions& options)
    : teacher_(teacher), loss_(loss) {
  require(!starts.empty(), "SideBySide: no features");
  for (FeatureSet& start : starts) {
    Objective objective = layerwise_objective(teacher, loss);
    const size_t next = trainers_.size() + 1;
    objective.run = [this, next](const Tensor& ids, const FeatureSet& features,
                                 const Objective::Take& take) {
      waiting_.push_back({&features, &take});
      if (next < trainers_.size())
        trainers_[next].step(ids);
      else
        run_teacher(ids);
    };
    trainers_.emplace_back(std::move(start), std::move(objective), options);
  }
}

void SideBySide::step(const Tensor& ids) {
  waiting_.clear();
  trainers_.front().step(ids);
}

void SideBySide::run_teacher(const Tensor& ids) const {
  ForwardOptions forward;
  forward.heads_only = true;
  forward.observer = [&](int64_t layer, const Tensor& q, const Tensor& k, const Tensor& v) {
    const auto at = static_cast<size_t>(layer);
    // All students have the same exact keys.
    const PairsToLearn pairs =
        pairs_to_learn(q, k, v, exact_keys_of(waiting_.front().features->exact, at));
    for (const Waiting& trainer : waiting_) {
      const Features& features = trainer.features->layers[at];
      if (!features.empty()) (*trainer.take)(layer, feature_loss(pairs, features, loss_));
    }
  };
  teacher_.forward(ids, forward);
}

}  // namespace dofla
