// What is trained and how, from the names that users give: the objectives, the feature maps and the
// learning rates that go with them.
#pragma once

#include <optional>
#include <string_view>
#include <vector>

#include "dofla/distill/train.h"

namespace dofla {

// "softmax", "l2" and "attention-mse" train layer by layer, "direct" the whole model.
const std::vector<std::string>& loss_names();

struct LearningRates {
  std::optional<double> z;      // left out: 0.05, for l2 0.002
  std::optional<double> alpha;  // of log α; left out: 0.2, for l2 0.02
};

struct Recipe {
  bool direct = false;                               // the next-token loss of the whole student
  FeatureLossKind loss = FeatureLossKind::kSoftmax;  // else
  TrainOptions train;

  std::string_view loss_name() const;
};

// The baselines follow their definitions, whatever `loss` says: Performer's features stay as drawn,
// and of DiJiang's only the weights learn, from the next-token loss, at a rate of 0.02 if that is
// left out. Throws std::invalid_argument unless `loss` is one of loss_names().
Recipe make_recipe(std::string_view loss, FeatureMap map, int64_t steps,
                   const LearningRates& rates = {});

}  // namespace dofla
