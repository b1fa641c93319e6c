#include "dofla/sensitivity/side_by_side.h"

#include <algorithm>

#include "dofla/core/error.h"
#include "dofla/distill/layer_target.h"
#include "dofla/distill/shared_batch.h"

namespace dofla {

// A trainer asks its objective for the losses of a batch. Here all but the last first let the next
// trainer take its step, so that the steps nest and the last one runs the teacher for all.
SideBySide::SideBySide(const Transformer& teacher, std::vector<FeatureSet> starts,
                       const LayerwiseLoss& loss, const TrainOptions& options, const Group& group)
    : teacher_(teacher), loss_(loss), group_(group), exact_(common_exact_keys(starts)) {
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
  SharedBatch batch(group_, ids);
  // What a layer's features of every trainer get.
  const auto for_each = [&](int64_t layer, const auto& add) {
    for (const Waiting& trainer : waiting_)
      if (const Features& of = trainer.features->layers[static_cast<size_t>(layer)]; !of.empty())
        add(of, *trainer.take);
  };
  if (batch.rows().defined()) {
    const auto wanted = [&](int64_t layer) {
      return std::ranges::any_of(waiting_, [&](const Waiting& trainer) {
        return !trainer.features->layers[static_cast<size_t>(layer)].empty();
      });
    };
    each_target(teacher_, batch.rows(), exact_, loss_, wanted,
                [&](int64_t layer, const LayerTarget& target) {
                  for_each(layer, [&](const Features& features, const Objective::Take& take) {
                    batch.add(layer, target.loss(features), take);
                  });
                });
  } else {
    for (int64_t layer = 0; layer < teacher_.config().layers; ++layer)
      for_each(layer, [&](const Features& features, const Objective::Take& take) {
        batch.add_nothing(layer, features, take);
      });
  }
  batch.finish();
}

}  // namespace dofla
