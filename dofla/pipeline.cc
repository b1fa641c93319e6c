#include "dofla/pipeline.h"

#include <algorithm>
#include <bit>

#include "dofla/core/error.h"
#include "dofla/core/fingerprint.h"
#include "dofla/core/stopwatch.h"
#include "dofla/distill/attention_entropy.h"
#include "dofla/distill/direct_objective.h"
#include "dofla/distill/pair_init.h"
#include "dofla/linear/linear_model.h"

namespace dofla {
namespace {

std::vector<TokenIds> first(const std::vector<TokenIds>& sequences, int64_t count) {
  const auto most = std::min(static_cast<size_t>(count), sequences.size());
  return {sequences.begin(), sequences.begin() + static_cast<std::ptrdiff_t>(most)};
}

// Checkpoint → (q, k) → DofTable → DimensionPlan
void choose_dimensions(const Transformer& teacher, const DistillText& text,
                       const DistillOptions& options, const Progress& progress, Distilled& result) {
  require(!options.start || (options.plan && options.plan->heads == options.start->counts()),
          "distill: features to go on from need the plan that they are of");
  if (options.plan) {
    require_fits(*options.plan, teacher.config());
    result.plan = *options.plan;
  } else if (options.allocate.strategy == PlanStrategy::kFix) {
    result.plan = fixed_plan(identity_of(teacher.config()), options.allocate.cost);
  } else {
    result.dof =
        measure_dof(teacher, first(text.train, options.dof_sequences), options.dof, progress);
    result.plan = allocate(*result.dof, options.allocate);
  }
}

// DimensionPlan → FeatureSet, not yet trained
FeatureSet draw_features(const Transformer& teacher, const DistillText& text,
                         const DistillOptions& options, const DimensionPlan& plan) {
  if (options.start) return options.start->clone();
  FeatureOptions draw = options.features;
  const std::vector<TokenIds> sequences = first(text.train, options.dof_sequences);
  const auto observe = [&](const Observer& observer) {
    for (const TokenIds& sequence : sequences)
      teacher.forward(to_tensor(sequence),
                      {.state = nullptr, .observer = observer, .heads_only = true});
  };
  if (draw.map == FeatureMap::kPrf && draw.init == FeatureInit::kPairs) {
    PairSampler pairs(plan, static_cast<int64_t>(sequences.size()), options.seed);
    observe(pairs.observer());
    return pairs.features();
  }
  if (draw.map != FeatureMap::kPrf || draw.init != FeatureInit::kLeverage)
    return init_features(plan, draw);
  QueryKeySampler sampler(teacher.config(), {options.dof.sample.samples, 1, options.seed});
  observe(sampler.observer());
  draw.samples = [&](int64_t layer, int64_t head) {
    return sampler.sample(layer, head, 0).to(Device());
  };
  return init_features(plan, draw);
}

Objective objective_of(const Checkpoint& checkpoint, const Transformer& teacher,
                       const DistillOptions& options) {
  return options.direct ? direct_objective(checkpoint, {options.device, options.recompute})
                        : layerwise_objective(teacher, options.loss);
}

// FeatureSet → trained FeatureSet
void train_features(const Checkpoint& checkpoint, const Transformer& teacher,
                    const DistillText& text, const DistillOptions& options,
                    const Progress& progress, Distilled& result) {
  FeatureTrainer trainer(draw_features(teacher, text, options, result.plan).to(options.device),
                         objective_of(checkpoint, teacher, options), options.train);
  if (options.resume) trainer.restore(options.checkpoint, options.run);
  ShuffledBatches batches(text.train, options.batch, options.seed);
  const Stopwatch whole;
  Stopwatch since_checkpoint;
  while (trainer.steps_done() < options.train.steps) {
    const Stopwatch one;
    const Tensor ids = batches.at(trainer.steps_done());
    trainer.step(ids);
    result.train_tokens += ids.count();
    const int64_t done = trainer.steps_done();
    TrainingStep step = trainer.last_step();
    step.tokens_per_second = static_cast<double>(ids.count()) / one.seconds();
    step.seconds = whole.seconds();
    const ProgressUpdate update = {"train", done, options.train.steps, "steps", &step};
    progress.tell(update);
    // The last one as well: assembling and writing the model may still fail.
    const bool stop = progress.stop_asked();
    const bool keep = stop || done % options.checkpoint_every == 0 || done == options.train.steps ||
                      since_checkpoint.seconds() >= options.checkpoint_seconds;
    if (!options.checkpoint.empty() && keep) {
      trainer.save(options.checkpoint, options.run);
      since_checkpoint = Stopwatch();
    }
    if (stop) stop_if_asked(progress, update);
  }
  result.train_seconds = whole.seconds();
  result.features = trainer.features();
  result.history = trainer.history();
}

// What the training losses cannot fall below.
std::vector<double> training_floor(const Transformer& teacher, const DistillText& text,
                                   const DistillOptions& options, const Distilled& result) {
  constexpr int64_t kWindows = 8;
  if (result.history.loss.empty()) return {};
  if (options.direct) return {result.comparison.teacher_loss};
  if (options.loss.kind != FeatureLossKind::kSoftmax) return {};
  std::vector<double> floor =
      attention_entropy(teacher, first(text.train, kWindows), options.loss.mask);
  for (size_t i = 0; i < floor.size(); ++i)
    if (result.features.layers[i].empty()) floor[i] = 0;  // as the loss of such a layer is
  return floor;
}

std::string fingerprint(const FeatureSet& features) {
  Fingerprint hash;
  for (const Features& layer : features.layers)
    for (const Tensor* tensor : {&layer.z, &layer.log_alpha})
      for (int64_t i = 0; i < tensor->count(); ++i)
        hash.add(std::bit_cast<uint32_t>(tensor->data<float>()[i]));
  return hash.text();
}

}  // namespace

DistillText split_held_out(std::vector<TokenIds> windows, int64_t held_out) {
  DistillText text;
  for (TokenIds& window : windows)
    if (text.train.empty() || window.size() == text.train.front().size())
      text.train.push_back(std::move(window));
  const auto count = static_cast<int64_t>(text.train.size());
  if (count <= held_out)
    fail(
        "the text has {} windows of {} tokens, and {} are held out: give more text, shorter "
        "windows, or hold fewer out",
        count, text.train.empty() ? 0 : text.train.front().size(), held_out);
  const auto split = text.train.end() - held_out;
  text.held_out.assign(split, text.train.end());
  text.train.erase(split, text.train.end());
  return text;
}

void DistillOptions::follow(const Recipe& recipe) {
  direct = recipe.direct;
  loss.kind = recipe.loss;
  train = recipe.train;
}

Json distill_settings(const Checkpoint& checkpoint, const DistillText& text,
                      const DistillOptions& options) {
  const Recipe recipe = {options.direct, options.loss.kind, options.train};
  Json settings = {{"teacher", to_string(identity_of(checkpoint.config()))},
                   {"device", options.device.name()},
                   {"strategy", options.plan ? "plan" : name(options.allocate.strategy)},
                   {"cost", options.plan ? options.plan->cost : options.allocate.cost},
                   {"lambda", options.allocate.lambda},
                   {"samples", options.dof.sample.samples},
                   {"features", name(options.features.map)},
                   {"init", name(options.features.init)},
                   {"loss", recipe.loss_name()},
                   {"mask", options.loss.mask == PairMask::kFull ? "full" : "causal"},
                   {"steps", options.train.steps},
                   {"batch", options.batch},
                   {"sequence_length", text.train.front().size()},
                   {"train_windows", text.train.size()},
                   {"text", fingerprint_of(text.train)},
                   {"lr_z", options.train.lr_z},
                   {"lr_alpha", options.train.lr_alpha},
                   {"seed", options.seed}};
  if (options.plan) settings["dims"] = options.plan->heads;
  if (options.start) settings["start"] = fingerprint(*options.start);
  return settings;
}

Distilled distill(const Checkpoint& checkpoint, const DistillText& text,
                  const DistillOptions& options, const Progress& progress) {
  const Transformer teacher(checkpoint, options.device);
  if (!text.held_out.empty()) require_finite_loss(teacher, text.held_out.front());
  Distilled result;
  choose_dimensions(teacher, text, options, progress, result);
  train_features(checkpoint, teacher, text, options, progress, result);

  const Transformer student = make_linear_model(checkpoint, result.features, options.device);
  int64_t tokens = 0;
  for (const TokenIds& sequence : text.held_out)
    tokens += static_cast<int64_t>(sequence.size()) - 1;
  result.comparison = compare(teacher, student, each_of(text.held_out), tokens, progress);
  result.floor = training_floor(teacher, text, options, result);
  return result;
}

double measure_step_seconds(const Checkpoint& checkpoint, const DistillText& text,
                            const DistillOptions& options) {
  const Transformer teacher(checkpoint, options.device);
  const DimensionPlan plan = options.plan
                                 ? *options.plan
                                 : fixed_plan(identity_of(teacher.config()), options.allocate.cost);
  require_fits(plan, teacher.config());
  FeatureTrainer trainer(init_features(plan, {}).to(options.device),
                         objective_of(checkpoint, teacher, options), options.train);
  ShuffledBatches batches(text.train, options.batch, options.seed);
  trainer.step(batches.at(0));  // the first one also pays for reading the weights
  const Stopwatch one;
  trainer.step(batches.at(1));
  options.device.synchronize();
  return one.seconds();
}

}  // namespace dofla
