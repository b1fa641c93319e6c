#include "dofla/distill/recipe.h"

#include <algorithm>

#include "dofla/core/error.h"

namespace dofla {

const std::vector<std::string>& loss_names() {
  static const std::vector<std::string> names = {"softmax", "l2", "attention-mse", "direct"};
  return names;
}

std::string_view Recipe::loss_name() const {
  if (direct) return "direct";
  switch (loss) {
    case FeatureLossKind::kSoftmax:
      return "softmax";
    case FeatureLossKind::kL2:
      return "l2";
    case FeatureLossKind::kAttentionMse:
      break;
  }
  return "attention-mse";
}

Recipe make_recipe(std::string_view loss, FeatureMap map, int64_t steps,
                   const LearningRates& rates) {
  require(std::find(loss_names().begin(), loss_names().end(), loss) != loss_names().end(),
          "make_recipe: no loss is called {}", loss);
  Recipe recipe;
  recipe.direct = loss == "direct";
  if (loss == "l2") recipe.loss = FeatureLossKind::kL2;
  if (loss == "attention-mse") recipe.loss = FeatureLossKind::kAttentionMse;
  // K̂ is exponential in z: l2, which sees K̂ itself and not its logarithm, bears smaller steps only.
  const bool l2 = recipe.loss == FeatureLossKind::kL2;
  recipe.train = {.steps = steps,
                  .lr_z = rates.z.value_or(l2 ? 0.002 : 0.05),
                  .lr_alpha = rates.alpha.value_or(l2 ? 0.02 : 0.2)};
  if (map == FeatureMap::kPerformer) recipe.train.steps = 0;
  if (map == FeatureMap::kDijiang) {
    recipe.direct = true;
    recipe.train.lr_z = 0;
    recipe.train.lr_alpha = rates.alpha.value_or(0.02);
  }
  return recipe;
}

}  // namespace dofla
