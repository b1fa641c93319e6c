// What a distillation's options mean together: what they contradict, and what the result depends
// on.
#include "dofla/checkpoint/fingerprint.h"
#include "dofla/core/error.h"
#include "dofla/pipeline.h"

namespace dofla {
namespace {

// How many features each head gets, and what that depends on.
void add_plan_settings(const ModelConfig& config, const DistillOptions& options, Json& settings) {
  if (const AllocateOptions* made = options.allocation()) {
    settings["strategy"] = name(made->strategy);
    if (made->memory) {
      settings["memory"] = *made->memory;
      settings["recall_share"] = made->recall_share.value_or(kRecallShare);
    } else {
      settings["cost"] = made->cost.value_or(config.head_size);
    }
    if (made->least > 1) settings["least"] = made->least;
    if (made->strategy == PlanStrategy::kDofHead) settings["power"] = made->power.value_or(1);
    if (made->strategy == PlanStrategy::kSensitivity)
      settings["by"] = name(made->by.value_or(PlanUnit::kHead));
    return;
  }
  const auto* start = std::get_if<StudentFeatures>(&options.plan);
  const DimensionPlan& plan =
      start != nullptr ? start->plan : std::get<DimensionPlan>(options.plan);
  settings["strategy"] = "plan";
  settings["cost"] = plan.cost;
  settings["dims"] = plan.heads;
  if (!plan.exact.empty()) settings["exact_keys"] = to_json(plan.exact);
  if (start != nullptr) settings["start"] = fingerprint_of(to_tensors(start->features));
}

void add_training_settings(const Recipe& recipe, Json& settings) {
  settings["steps"] = recipe.train.steps;
  if (recipe.train.steps == 0) {
    settings["loss"] = "none";
    return;
  }
  settings["loss"] = name(kind_of(recipe.loss));
  if (const auto* of_pairs = std::get_if<FeatureLossOptions>(&recipe.loss))
    settings["mask"] = name(of_pairs->mask);
  settings["lr_z"] = recipe.train.lr_z;
  settings["lr_alpha"] = recipe.train.lr_alpha;
  if (is_untied(recipe.features)) settings["lr_norm"] = recipe.train.lr_norm;
}

void require_sound_memory(const DistillOptions& options) {
  const AllocateOptions* made = options.allocation();
  if (made == nullptr || !made->memory) return;
  require(made->strategy == PlanStrategy::kSensitivity,
          "a memory has no effect: strategy {} has none, only {}", name(made->strategy),
          name(PlanStrategy::kSensitivity));
  require(!made->cost, "a cost has no effect beside a memory, which says what may be spent");
  require(!options.exact || options.exact->keys == 0,
          "a number of exact keys has no effect: the memory says how many there can be");
}

void require_sound_keep(const DistillOptions& options) {
  require(options.keep.empty() || !std::holds_alternative<StudentFeatures>(options.plan),
          "layers to keep have no effect: the student to go on from says which have features");
  if (options.keep_count == 0) return;
  require(options.keep_count > 0, "layers to keep: expected 0 or more, found {}",
          options.keep_count);
  require(options.keep.empty(), "either which layers keep their softmax attention, or how many");
  require(options.measures_dof() || options.measures_sensitivity(),
          "a number of layers to keep needs a plan that is made by sensitivity or degrees of "
          "freedom, to know which: name the layers instead");
}

// The exact keys that every layer has, or has at least where a memory says how many more.
ExactKeys exact_keys_asked_for(const DistillOptions& options) {
  ExactKeys exact = options.exact.value_or(ExactKeys{});
  const AllocateOptions* made = options.allocation();
  if (made != nullptr && made->memory) exact.keys = least_keys(exact);
  return exact;
}

void require_sound_exact_keys(const DistillOptions& options) {
  const ExactKeys exact = exact_keys_asked_for(options);
  if (exact.empty()) return;
  require(options.allocation() != nullptr,
          "exact keys have no effect: the plan or student that is given says which keys are kept");
  require_valid(exact);
  require(takes_init(options.recipe.features),
          "exact keys need features that estimate the kernel: {} and {}, not {}",
          name(FeatureMap::kUntied), name(FeatureMap::kPrf), name(options.recipe.features));
  const auto* of_pairs = std::get_if<FeatureLossOptions>(&options.recipe.loss);
  require(of_pairs == nullptr || of_pairs->mask == PairMask::kCausal,
          "mask {} has no meaning beside exact keys: what has left the cache came before",
          name(PairMask::kFull));
}

}  // namespace

bool DistillOptions::draws_by_leverage() const {
  return !std::holds_alternative<StudentFeatures>(plan) && takes_init(recipe.features) &&
         recipe.init == FeatureInit::kLeverage;
}

bool DistillOptions::calibrates() const {
  const auto* start = std::get_if<StudentFeatures>(&plan);
  const auto* given = std::get_if<DimensionPlan>(&plan);
  const bool exact_keys = start != nullptr   ? !start->features.exact.empty()
                          : given != nullptr ? !given->exact.empty()
                                             : !exact_keys_asked_for(*this).empty();
  return exact_keys && !std::holds_alternative<DirectLoss>(recipe.loss);
}

const AllocateOptions* DistillOptions::allocation() const {
  return std::get_if<AllocateOptions>(&plan);
}

Coordinates DistillOptions::coordinates_kind() const {
  const auto* start = std::get_if<StudentFeatures>(&plan);
  return start != nullptr ? start->features.coordinates.kind : coordinates.value_or(kCoordinates);
}

bool DistillOptions::measures_dof() const {
  const AllocateOptions* made = allocation();
  return made != nullptr && made->strategy != PlanStrategy::kFix && !measures_sensitivity();
}

bool DistillOptions::measures_sensitivity() const {
  const AllocateOptions* made = allocation();
  return made != nullptr && made->strategy == PlanStrategy::kSensitivity;
}

void require_sound(const DistillOptions& options) {
  require(!options.dof || options.measures_dof() || options.draws_by_leverage(),
          "options of degrees of freedom (λ, samples, draws) have no effect: none are measured for "
          "a plan that is given or has strategy {} or {}",
          name(PlanStrategy::kFix), name(PlanStrategy::kSensitivity));
  const AllocateOptions* made = options.allocation();
  require(made == nullptr || !made->power || made->strategy == PlanStrategy::kDofHead,
          "power has no effect: strategy {} has none, only {}",
          made == nullptr ? "" : name(made->strategy), name(PlanStrategy::kDofHead));
  require(made == nullptr || !made->by || options.measures_sensitivity(),
          "by has no effect: strategy {} has none, only {}",
          made == nullptr ? "" : name(made->strategy), name(PlanStrategy::kSensitivity));
  require(!options.measures_sensitivity() || takes_init(options.recipe.features),
          "strategy {} trains students of its own: it has no plan for {}",
          name(PlanStrategy::kSensitivity), name(options.recipe.features));
  require_sound_memory(options);
  require_sound_keep(options);
  require_sound_exact_keys(options);
  if (const auto* start = std::get_if<StudentFeatures>(&options.plan)) {
    require(start->features.map == options.recipe.features,
            "features {} have no effect: the student to go on from has {}",
            name(options.recipe.features), name(start->features.map));
    require(!options.coordinates || *options.coordinates == start->features.coordinates.kind,
            "coordinates {} have no effect: the features to go on from are in {} ones",
            name(options.coordinates.value_or(kCoordinates)),
            name(start->features.coordinates.kind));
    require(start->plan.heads == start->features.counts(),
            "distill: features to go on from need the plan that they are of");
  }
}

Json distill_settings(const Checkpoint& checkpoint, const DistillText& text,
                      const DistillOptions& options) {
  require_sound(options);
  const DofOptions dof = options.dof.value_or(DofOptions());
  const bool drawn = !std::holds_alternative<StudentFeatures>(options.plan);
  Json settings = {{"teacher", to_string(identity_of(checkpoint.config()))},
                   {"device", options.device.name()},
                   {"features", name(options.recipe.features)},
                   {"coordinates", name(options.coordinates_kind())},
                   {"batch", options.batch},
                   {"sequence_length", text.train.length()},
                   {"train_windows", text.train.size()},
                   {"text", fingerprint_of(text.train)},
                   {"seed", options.seed}};
  add_plan_settings(checkpoint.config(), options, settings);
  if (options.measures_dof() || options.draws_by_leverage()) {
    settings["lambda"] = dof.lambda;
    settings["samples"] = dof.samples;
    settings["gram"] = name(dof.gram);
  }
  if (options.measures_dof()) settings["draws"] = dof.draws;
  if (drawn && takes_init(options.recipe.features)) settings["init"] = name(options.recipe.init);
  add_training_settings(options.recipe, settings);
  if (const ExactKeys exact = exact_keys_asked_for(options); !exact.empty())
    settings["exact_keys"] = to_json(exact);
  if (options.calibrates()) settings["calibration_windows"] = kCalibrationWindows;
  if (!options.keep.empty()) settings["keep"] = options.keep;
  if (options.keep_count > 0) settings["keep_count"] = options.keep_count;
  settings.update(options.about);
  return settings;
}

}  // namespace dofla
