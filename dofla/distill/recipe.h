// How features come to be: what is asked for, and what follows from it once what was left out is
// filled in. The defaults stand here and nowhere else.
#pragma once

#include <optional>

#include "dofla/distill/feature_init.h"
#include "dofla/distill/loss.h"
#include "dofla/distill/train.h"

namespace dofla {

struct RecipeOptions {
  FeatureMap features = kDefaultFeatureMap;
  bool exact_keys = false;               // whether there are some beside the features
  std::optional<FeatureInit> init = {};  // of untied and prf; left out: pairs
  // Left out: softmax, beside exact keys output, for dijiang direct.
  std::optional<LossKind> loss = {};
  std::optional<PairMask> mask = {};  // of layerwise losses; left out: causal
  bool recompute = false;             // of the direct loss
  std::optional<int64_t> steps = {};  // left out: 400, for performer 0
  std::optional<double> lr_z = {};    // left out: 0.05, for kl 0.01, for l2 0.002, for dijiang 0
  std::optional<double> lr_alpha =
      {};  // of log α; left out: 0.2, for kl 0.1, for l2 and dijiang 0.02
  std::optional<double> lr_norm = {};  // of η, of untied; left out: 0.03, for l2 0.001
};

struct Recipe {
  FeatureMap features = kDefaultFeatureMap;
  FeatureInit init = FeatureInit::kPairs;  // of untied and prf
  Loss loss;                               // where there are steps
  TrainOptions train;
};

// The baselines follow their definitions: Performer's features stay as drawn, and of DiJiang's only
// the weights learn, from the next-token loss. Throws std::invalid_argument on options that
// contradict each other, saying which of them has no effect and why.
Recipe make_recipe(const RecipeOptions& options = {});

}  // namespace dofla
