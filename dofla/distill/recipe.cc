#include "dofla/distill/recipe.h"

#include "dofla/core/error.h"

namespace dofla {
namespace {

constexpr int64_t kSteps = 400;

void refuse_if(bool given, std::string_view what, std::string_view because) {
  require(!given, "{} has no effect: {}", what, because);
}

void refuse_what_has_no_effect(const RecipeOptions& options) {
  if (!takes_init(options.features))
    refuse_if(options.init.has_value(), "init",
              fmt::format("{} features are drawn in a way of their own", name(options.features)));
  if (options.features == FeatureMap::kPerformer) {
    constexpr const char* kWhy = "performer features stay as they are drawn";
    refuse_if(options.steps.value_or(0) > 0, fmt::format("steps {}", options.steps.value_or(0)),
              kWhy);
    refuse_if(options.loss.has_value(), "loss", kWhy);
    refuse_if(options.mask.has_value(), "mask", kWhy);
    refuse_if(options.recompute, "recompute", kWhy);
    refuse_if(options.lr_z || options.lr_alpha, "a learning rate", kWhy);
  }
  refuse_if(options.lr_norm && !is_untied(options.features), "the learning rate of η",
            fmt::format("{} features have no η", name(options.features)));
  if (options.features == FeatureMap::kDijiang) {
    refuse_if(options.loss && !is_direct(*options.loss),
              fmt::format("loss {}", name(options.loss.value_or(LossKind::kDirect))),
              "dijiang features are trained with the direct or the kl loss");
    refuse_if(options.lr_z.has_value(), "the learning rate of z",
              "of dijiang features only log α is trained");
  }
}

LossKind kind_for(const RecipeOptions& options) {
  const bool dijiang = options.features == FeatureMap::kDijiang;
  return options.loss.value_or(dijiang              ? LossKind::kDirect
                               : options.exact_keys ? LossKind::kOutput
                                                    : LossKind::kSoftmax);
}

Loss make_loss(const RecipeOptions& options) {
  const LossKind kind = kind_for(options);
  if (is_direct(kind)) {
    refuse_if(options.mask.has_value(), "mask",
              fmt::format("the {} loss has no pairs to mask", name(kind)));
    return DirectLoss{.imitate = kind == LossKind::kKl, .recompute = options.recompute};
  }
  refuse_if(options.recompute, "recompute",
            "only the direct and kl losses run a whole student backward");
  if (kind == LossKind::kOutput) {
    refuse_if(options.mask.has_value(), "mask", "the output loss has no pairs to mask");
    return OutputLoss{};
  }
  FeatureLossOptions loss = {.kind = FeatureLossKind::kSoftmax,
                             .mask = options.mask.value_or(PairMask::kCausal)};
  if (kind == LossKind::kL2) loss.kind = FeatureLossKind::kL2;
  if (kind == LossKind::kAttentionMse) loss.kind = FeatureLossKind::kAttentionMse;
  return loss;
}

TrainOptions make_train_options(const RecipeOptions& options) {
  TrainOptions train;  // with the learning rates of most losses
  train.steps = options.steps.value_or(kSteps);
  // K̂ is exponential in z: l2, which sees K̂ itself and not its logarithm, bears smaller steps only.
  if (kind_for(options) == LossKind::kL2) {
    train.lr_z = 0.002;
    train.lr_alpha = 0.02;
  }
  // One gradient for all layers, which steps of one layer after another do not see: half an order
  // of magnitude less. docs/distill.md has the sweep.
  if (kind_for(options) == LossKind::kKl) {
    train.lr_z = 0.01;
    train.lr_alpha = 0.1;
  }
  if (options.features == FeatureMap::kDijiang) {
    train.lr_z = 0;
    train.lr_alpha = 0.02;
  }
  if (options.features == FeatureMap::kPerformer) train.steps = 0;
  train.lr_z = options.lr_z.value_or(train.lr_z);
  train.lr_alpha = options.lr_alpha.value_or(train.lr_alpha);
  if (is_untied(options.features))
    train.lr_norm = options.lr_norm.value_or(kind_for(options) == LossKind::kL2 ? 0.001 : 0.03);
  return train;
}

}  // namespace

LossKind kind_of(const Loss& loss) {
  if (const auto* direct = std::get_if<DirectLoss>(&loss))
    return direct->imitate ? LossKind::kKl : LossKind::kDirect;
  const auto* of_pairs = std::get_if<FeatureLossOptions>(&loss);
  if (of_pairs == nullptr) return LossKind::kOutput;
  switch (of_pairs->kind) {
    case FeatureLossKind::kSoftmax:
      return LossKind::kSoftmax;
    case FeatureLossKind::kL2:
      return LossKind::kL2;
    case FeatureLossKind::kAttentionMse:
      break;
  }
  return LossKind::kAttentionMse;
}

LayerwiseLoss layerwise(const Loss& loss) {
  require(!std::holds_alternative<DirectLoss>(loss), "the {} loss is of the whole student",
          name(kind_of(loss)));
  if (const auto* of_pairs = std::get_if<FeatureLossOptions>(&loss)) return *of_pairs;
  return OutputLoss{};
}

Recipe make_recipe(const RecipeOptions& options) {
  refuse_what_has_no_effect(options);
  return {.features = options.features,
          .init = options.init.value_or(FeatureInit::kPairs),
          .loss = make_loss(options),
          .train = make_train_options(options)};
}

}  // namespace dofla
