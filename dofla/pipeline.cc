#include "dofla/pipeline.h"

#include <algorithm>

#include "dofla/checkpoint/fingerprint.h"
#include "dofla/core/error.h"
#include "dofla/core/stopwatch.h"
#include "dofla/distill/calibrate.h"
#include "dofla/distill/direct_objective.h"
#include "dofla/distill/pair_init.h"
#include "dofla/distill/shared_batch.h"
#include "dofla/distributed/agreement.h"
#include "dofla/linear/linear_model.h"
#include "dofla/model/rounded_weights.h"
#include "dofla/pipeline/judge.h"
#include "dofla/pipeline/plan.h"

namespace dofla {
namespace {

// The teacher as degrees of freedom, features and losses see it.
struct Teacher {
  CoordinateSet coordinates;
  Checkpoint checkpoint;  // in these coordinates
  Transformer model;
};

Teacher in_coordinates(const Checkpoint& checkpoint, const Transformer& original,
                       const DistillText& text, const DistillOptions& options,
                       const Progress& progress) {
  const auto* start = std::get_if<StudentFeatures>(&options.plan);
  CoordinateSet coordinates =
      start != nullptr ? start->features.coordinates
                       : measure_coordinates(original, first_windows(text.train, options.sequences),
                                             options.coordinates_kind(), progress, options.group);
  Checkpoint there = in_coordinates(checkpoint, coordinates);
  Transformer model(there, options.device);
  return {std::move(coordinates), std::move(there), std::move(model)};
}

FeatureSet draw_in_coordinates(const Transformer& teacher, const DistillText& text,
                               const DistillOptions& options, const DimensionPlan& plan,
                               const Progress& progress) {
  const Recipe& recipe = options.recipe;
  const std::vector<TokenIds> sequences = first_windows(text.train, options.sequences);
  const auto observe = [&](const Observer& observer) {
    int64_t done = 0;
    for (const TokenIds& sequence : sequences) {
      teacher.forward(to_tensor(sequence),
                      {.state = nullptr, .observer = observer, .heads_only = true});
      report(options.group, progress,
             {"first features", ++done, std::ssize(sequences), "sequences"});
    }
  };
  if (takes_init(recipe.features) && recipe.init == FeatureInit::kPairs) {
    PairSampler pairs(plan, static_cast<int64_t>(sequences.size()), options.seed);
    observe(pairs.observer());
    return pairs.features(recipe.features);
  }
  FeatureOptions draw = {.map = recipe.features, .init = recipe.init, .seed = options.seed};
  if (!options.draws_by_leverage()) return init_features(plan, draw);
  const DofOptions dof = options.dof.value_or(DofOptions());
  QueryKeySampler sampler(teacher.config(), {dof.samples, 1, options.seed, plan.feature_heads});
  observe(sampler.observer());
  draw.leverage = {
      .samples = [&](int64_t layer,
                     int64_t head) { return sampler.sample(layer, head, 0).to(Device()); },
      .gram = dof.gram,
      .lambda = dof.lambda};
  return init_features(plan, draw);
}

// DimensionPlan → FeatureSet, not yet trained
FeatureSet draw_features(const Teacher& teacher, const DistillText& text,
                         const DistillOptions& options, const DimensionPlan& plan,
                         const Progress& progress) {
  if (const auto* start = std::get_if<StudentFeatures>(&options.plan))
    return start->features.clone();
  FeatureSet features = draw_in_coordinates(teacher.model, text, options, plan, progress);
  features.coordinates = teacher.coordinates;
  return features;
}

Objective objective_of(const Checkpoint& checkpoint, const Transformer& teacher,
                       const DistillOptions& options) {
  const auto* direct = std::get_if<DirectLoss>(&options.recipe.loss);
  return shared_by(options.group, direct != nullptr ? direct_objective(checkpoint, teacher, *direct)
                                                    : layerwise_objective(
                                                          teacher, layerwise(options.recipe.loss)));
}

// FeatureSet → trained FeatureSet
void train_features(const Checkpoint& checkpoint, const Teacher& teacher, const DistillText& text,
                    const DistillOptions& options, const Progress& progress, Distilled& result) {
  const TrainOptions& train = options.recipe.train;
  FeatureTrainer trainer(
      draw_features(teacher, text, options, result.plan, progress).to(options.device),
      objective_of(checkpoint, teacher.model, options), train);
  if (options.resume) trainer.restore(options.checkpoint, result.settings);
  if (!options.group.alone())
    require_same(options.group, "features", fingerprint_of(to_tensors(trainer.features())));
  ShuffledBatches batches(text.train, options.batch, options.seed);
  const Stopwatch whole;
  Stopwatch since_checkpoint;
  while (trainer.steps_done() < train.steps) {
    const Stopwatch one;
    const Tensor ids = batches.at(trainer.steps_done());
    trainer.step(ids);
    result.train_tokens += ids.count();
    const int64_t done = trainer.steps_done();
    TrainingStep step = trainer.last_step();
    step.tokens_per_second = static_cast<double>(ids.count()) / one.seconds();
    step.seconds = whole.seconds();
    const ProgressUpdate update = {"train", done, train.steps, "steps", &step};
    progress.tell(update);
    // The last one as well: assembling and writing the model may still fail.
    const bool stop = options.group.any(progress.stop_asked());
    const bool keep = stop || done % options.checkpoint_every == 0 || done == train.steps ||
                      since_checkpoint.seconds() >= options.checkpoint_seconds;
    if (!options.checkpoint.empty() && keep && options.group.is_first()) {
      trainer.save(options.checkpoint, result.settings);
      since_checkpoint = Stopwatch();
    }
    if (!stop) continue;
    options.group.wait();  // nobody leaves before the run is kept
    cancel(update);
  }
  result.train_seconds = whole.seconds();
  result.features = trainer.features();
  if (options.calibrates())
    calibrate(
        teacher.model,
        windows_after(text.train, train.steps * options.batch, kCalibrationWindows, options.seed),
        std::span(&result.features, 1), progress, options.group);
  result.history = trainer.history();
}

void require_same_job(const Checkpoint& checkpoint, const DistillText& text, const Group& group,
                      Json settings) {
  if (group.alone()) return;
  settings["held-out text"] = fingerprint_of(text.held_out);
  require_same(group, settings);
  require_same_weights(group, checkpoint);
}

}  // namespace

DistillText split_held_out(const WindowSet& windows, int64_t held_out) {
  const auto count = static_cast<int64_t>(windows.size());
  if (count <= held_out)
    fail(
        "the text has {} window{} of {} tokens, and {} are held out: give more text, shorter "
        "windows, or hold fewer out",
        count, count == 1 ? "" : "s", windows.length(), held_out);
  const auto split = static_cast<size_t>(count - held_out);
  return {.train = windows.slice(0, split),
          .held_out = windows.slice(split, static_cast<size_t>(held_out))};
}

StudentFeatures load_student_features(const fs::path& folder) {
  const fs::path file = folder / "plan.json";
  StudentFeatures student = {.plan = {}, .features = load_features(Checkpoint(folder))};
  student.plan = load_dimension_plan(file, Input::kFile);
  if (student.plan.heads != student.features.counts() ||
      student.plan.exact != student.features.exact)
    fail("{}: is not the plan of the features beside it", file.string());
  return student;
}

double Distilled::tokens_per_second() const {
  return train_seconds > 0 ? static_cast<double>(train_tokens) / train_seconds : 0;
}

Distilled distill(const Checkpoint& checkpoint, const DistillText& text,
                  const DistillOptions& options, const Progress& progress) {
  require_unrounded(checkpoint, "distil");
  Distilled result;
  result.settings = distill_settings(checkpoint, text, options);
  require_same_job(checkpoint, text, options.group, result.settings);
  const Transformer original(checkpoint, options.device);
  if (!text.held_out.empty()) require_finite_loss(original, text.held_out.front());
  Teacher teacher = in_coordinates(checkpoint, original, text, options, progress);
  make_plan(teacher.checkpoint, teacher.model, text, options, progress, result);
  train_features(checkpoint, teacher, text, options, progress, result);

  Transformer student = make_linear_model(checkpoint, result.features, options.device);
  judge(original, teacher.model, student, text, options, progress, result);
  return result;
}

double measure_step_seconds(const Checkpoint& checkpoint, const DistillText& text,
                            const DistillOptions& options) {
  require_sound(options);
  const Transformer original(checkpoint, options.device);
  const Teacher teacher = in_coordinates(checkpoint, original, text, options, {});
  Distilled untrained;
  const DistillOptions fixed = without_measuring(original.config(), options);
  make_plan(teacher.checkpoint, teacher.model, text, fixed, {}, untrained);
  FeatureTrainer trainer(draw_features(teacher, text, fixed, untrained.plan, {}).to(options.device),
                         objective_of(checkpoint, teacher.model, options), options.recipe.train);
  ShuffledBatches batches(text.train, options.batch, options.seed);
  trainer.step(batches.at(0));  // the first one also pays for reading the weights
  const Stopwatch one;
  trainer.step(batches.at(1));
  options.device.synchronize();
  return one.seconds();
}

}  // namespace dofla
