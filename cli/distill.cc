#include <algorithm>
#include <chrono>
#include <memory>

#include <sys/resource.h>

#include "cli/choice_option.h"
#include "cli/command.h"
#include "cli/device_option.h"
#include "cli/distill_report.h"
#include "cli/exact_keys_option.h"
#include "cli/lambda_option.h"
#include "cli/output.h"
#include "cli/progress_bar.h"
#include "cli/training_run.h"
#include "cli/usage_error.h"
#include "dofla/core/error.h"
#include "dofla/linear/linear_model.h"
#include "dofla/pipeline.h"
#include "dofla/pipeline/student.h"

namespace dofla::cli {
namespace {

struct DistillArguments {
  ModelArgument model;
  DeviceOption device;
  TrainingRun training;
  TextArguments text;
  LambdaOption lambda;
  std::string plan, start;
  AllocateOptions allocate;
  ExactKeysOption exact;
  std::optional<PlanStrategy> strategy;
  std::optional<Coordinates> coordinates;
  std::optional<int64_t> samples;
  RecipeOptions recipe;
  int64_t batch = DistillOptions().batch;
  int64_t held_out = kHeldOut;
  bool dry_run = false;
  bool json = false;
};

DistillText read_text(const DistillArguments& options, const Checkpoint& checkpoint,
                      const Progress& progress) {
  return split_held_out(options.text.read(checkpoint, progress), options.held_out);
}

// Measured sensitivity gives the better plans. It has none for features that it does not train, and
// options of degrees of freedom ask for those.
PlanStrategy strategy_of(const DistillArguments& options) {
  const bool dof = options.lambda.value() || options.samples || options.allocate.power;
  const PlanStrategy left_out =
      dof || !takes_init(options.recipe.features) ? PlanStrategy::kDof : PlanStrategy::kSensitivity;
  return options.strategy.value_or(left_out);
}

// The job that the arguments ask for.
DistillOptions make_job(const DistillArguments& options) {
  DistillOptions job;
  options.training.set(job);
  RecipeOptions recipe = options.recipe;
  recipe.recompute = options.training.recompute();
  if (!options.start.empty()) {
    StudentFeatures start = load_student_features(options.start);
    recipe.features = start.features.map;
    job.plan = std::move(start);
  } else if (!options.plan.empty()) {
    job.plan = load_dimension_plan(options.plan);
  } else {
    AllocateOptions allocate = options.allocate;
    allocate.strategy = strategy_of(options);
    if (options.exact.given() && !allocate.cost) allocate.cost = kFeaturesBesideExactKeys;
    job.plan = allocate;
  }
  if (options.lambda.value() || options.samples) {
    DofOptions& dof = job.dof.emplace();
    dof.lambda = options.lambda.value().value_or(dof.lambda);
    dof.samples = options.samples.value_or(dof.samples);
  }
  job.coordinates = options.coordinates;
  job.exact = options.exact.value();
  job.keep = options.exact.keep();
  job.recipe = make_recipe(recipe);
  job.batch = options.batch;
  job.device = options.device.get();
  require_sound(job);
  return job;
}

void estimate(const DistillArguments& options, const Checkpoint& checkpoint,
              const DistillText& text, const DistillOptions& job) {
  const double step = job.recipe.train.steps == 0 ? 0 : measure_step_seconds(checkpoint, text, job);
  rusage usage = {};
  getrusage(RUSAGE_SELF, &usage);
  const double seconds = step * static_cast<double>(job.recipe.train.steps);
  const int64_t bytes = int64_t{usage.ru_maxrss} * 1024;
  if (options.json)
    return print_json({{"dry_run", true},
                       {"steps", job.recipe.train.steps},
                       {"step_seconds", step},
                       {"seconds", seconds},
                       {"peak_bytes", bytes}});
  print(
      fmt::format("steps          {} of {} x {} tokens\n"
                  "a step         {:.2f} s\n"
                  "training       about {:.0f} s\n"
                  "memory         about {}\n",
                  job.recipe.train.steps, job.batch, text.train.front().size(), step, seconds,
                  with_bytes_unit(bytes)));
}

void run(const DistillArguments& options, const Checkpoint& checkpoint, const DistillOptions& job,
         const std::atomic<bool>* stop) {
  const auto start = std::chrono::steady_clock::now();
  Distilled result;
  {
    ProgressBar bar(stop);
    const DistillText text = read_text(options, checkpoint, bar.progress());
    if (options.dry_run) return estimate(options, checkpoint, text, job);
    result = distill(checkpoint, text, job, options.training.logged(bar.progress()));
  }
  write_student(options.training.out(), checkpoint, result, provenance(options.text.files()));
  fs::remove(job.checkpoint);
  const double seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  for (const auto& [layer, head] : result.features.coordinates.unvaried)
    remark(fmt::format(
        "layer {}, key head {}: its queries or keys do not vary; it keeps its own coordinates",
        layer + 1, head + 1));
  if (options.json) return print_json(distill_json(result, seconds));
  print(distill_table(checkpoint, result, seconds));
  remark(fmt::format("{0}: model, {1}plan.json and report.html; open {0}/report.html",
                     options.training.out(),
                     result.dof           ? "dof.json, "
                     : result.sensitivity ? "sensitivity.json, "
                                          : ""));
}

void run(const DistillArguments& options) {
  const Checkpoint checkpoint(options.model.folder());
  if (is_linear(checkpoint))
    fail("{}: is a linear-attention model already; distil its teacher",
         checkpoint.folder().string());
  const DistillOptions job = from_arguments([&] { return make_job(options); });
  if (options.dry_run) return run(options, checkpoint, job, nullptr);
  options.training.guard(
      [&](const std::atomic<bool>* stop) { run(options, checkpoint, job, stop); });
}

void add_feature_options(CLI::App& app, DistillArguments& options) {
  CLI::Option* cost =
      app.add_option(
             "--cost", options.allocate.cost,
             fmt::format("features a head (untied: a key head) on average (left out: the size of a "
                         "head,\nbeside exact keys {})",
                         kFeaturesBesideExactKeys))
          ->type_name("C")
          ->check(whole_between(1, DimensionPlan::kLargestDimension));
  CLI::Option* strategy =
      add_choice(app, "--strategy", options.strategy,
                 fmt::format("how the features are spread over layers and heads (left out: {};\n"
                             "{} with its options, and for performer and dijiang)",
                             name(PlanStrategy::kSensitivity), name(PlanStrategy::kDof)));
  CLI::Option* power = app.add_option("--power", options.allocate.power,
                                      "of the degrees of freedom, for dof-head (left out: 1)")
                           ->type_name("P")
                           ->check(real_between(0, 100));
  CLI::Option* least =
      add_number(app, "--least", options.allocate.least, "no head gets fewer features", "N",
                 whole_between(1, DimensionPlan::kLargestDimension))
          ->capture_default_str();
  CLI::Option* by = add_choice(app, "--by", options.allocate.by,
                               "sensitivity: the same M for a layer, or each head its own\n"
                               "(left out: head)");
  CLI::Option* plan = app.add_option("--plan", options.plan,
                                     "a plan of dofla plan, instead of --cost and --strategy")
                          ->type_name("F");
  CLI::Option* start =
      app.add_option("--start", options.start,
                     "a student of the same teacher to go on from, instead of a plan and drawn\n"
                     "features: for instance softmax first, then kl")
          ->type_name("DIR")
          ->excludes(plan);
  for (CLI::Option* option : {cost, strategy, power, least, by}) {
    option->excludes(plan);
    option->excludes(start);
  }
  options.exact.add(app, {plan, start}, "goes to the features (left out: none)");
  options.exact.add_keep(app, start);
  add_choice(
      app, "--coordinates", options.coordinates,
      fmt::format("of the queries and keys that features see; attention is the same in all of "
                  "them\n(left out: {}, with --start those of the student)",
                  name(kCoordinates)));
  options.lambda.add(app, fmt::format("the ridge λ of the degrees of freedom (left out: {})",
                                      lambda_text(kDefaultLambda)));
  app.add_option("--samples", options.samples,
                 fmt::format("queries and keys a head that the degrees of freedom are measured on\n"
                             "(left out: {})",
                             DofOptions().samples))
      ->type_name("J")
      ->check(whole_from(1));
  add_choice(app, "--features", options.recipe.features,
             "the feature map: untied features belong to key heads, all others to query heads;\n"
             "performer is not trained, of dijiang the weights")
      ->excludes(start);
  add_choice(app, "--init", options.recipe.init,
             fmt::format("how untied and prf features are drawn before training (left out: {})",
                         name(make_recipe().init)))
      ->excludes(start);
}

std::string rate_text(const RecipeOptions& recipe, double TrainOptions::*rate) {
  return fmt::format("{}", make_recipe(recipe).train.*rate);
}

void add_training_options(CLI::App& app, DistillArguments& options) {
  RecipeOptions& recipe = options.recipe;
  const RecipeOptions kl = {.loss = LossKind::kKl}, l2 = {.loss = LossKind::kL2},
                      dijiang = {.features = FeatureMap::kDijiang};
  add_choice(app, "--loss", recipe.loss,
             "softmax, l2 and attention-mse train layer by layer; direct trains the whole\n"
             "model on the next token, kl on the teacher's distribution of it (left out:\n"
             "softmax, for dijiang direct)");
  add_choice(app, "--mask", recipe.mask,
             fmt::format("pairs of query and key in the layerwise losses (left out: {})",
                         name(PairMask::kCausal)));
  add_number(
      app, "--steps", recipe.steps,
      fmt::format("optimizer steps (left out: {}, for performer {})", make_recipe().train.steps,
                  make_recipe({.features = FeatureMap::kPerformer}).train.steps)
          .c_str(),
      "N", whole_from(0));
  add_number(app, "--batch", options.batch, "windows a step", "B", whole_between(1, 1 << 20))
      ->capture_default_str();
  add_number(app, "--lr-z", recipe.lr_z,
             fmt::format("learning rate of z (left out: {}, for kl {}, for l2 {})",
                         rate_text({}, &TrainOptions::lr_z), rate_text(kl, &TrainOptions::lr_z),
                         rate_text(l2, &TrainOptions::lr_z))
                 .c_str(),
             "R", real_between(0, 1e3));
  add_number(
      app, "--lr-alpha", recipe.lr_alpha,
      fmt::format("of log α (left out: {}, for kl {}, for l2 {}, for dijiang {})",
                  rate_text({}, &TrainOptions::lr_alpha), rate_text(kl, &TrainOptions::lr_alpha),
                  rate_text(l2, &TrainOptions::lr_alpha),
                  rate_text(dijiang, &TrainOptions::lr_alpha))
          .c_str(),
      "R", real_between(0, 1e3));
  const RecipeOptions untied = {.features = FeatureMap::kUntied},
                      untied_l2 = {.features = FeatureMap::kUntied, .loss = LossKind::kL2};
  add_number(
      app, "--lr-norm", recipe.lr_norm,
      fmt::format("of η, the weight of the norm in untied features (left out: {}, for l2 {})",
                  rate_text(untied, &TrainOptions::lr_norm),
                  rate_text(untied_l2, &TrainOptions::lr_norm))
          .c_str(),
      "R", real_between(0, 1e3));
  add_number(app, "--held-out", options.held_out,
             "last windows of the text, kept to judge the student by", "T", whole_from(1))
      ->capture_default_str();
  options.training.add(app, "of features and batches", "50",
                       "with direct and kl: less memory for a third more time");
  app.add_flag("--dry-run", options.dry_run, "only estimate the time of training and the memory");
}

}  // namespace

Command add_distill(CLI::App& program) {
  CLI::App* app = program.add_subcommand(
      "distill", "Turn a softmax model into a linear-attention model and say how good it is");
  const auto options = std::make_shared<DistillArguments>();
  options->model.add(*app);
  options->device.add(*app);
  options->text.add(*app);
  options->training.add_out(*app);
  add_feature_options(*app, *options);
  add_training_options(*app, *options);
  add_json_flag(*app, options->json);
  app->footer(
      "What each head adds to the loss when it is linear is measured, as dofla sensitivity does "
      "(with\n"
      "--strategy dof the degrees of freedom), turned into a plan, the features trained\n"
      "layer by layer on the teacher's own queries and keys (with --loss direct and kl all "
      "together;\n"
      "with performer not at all), and the student compared with its\n"
      "teacher on windows that it was not trained on. DIR is a complete model folder that "
      "inspect,\n"
      "evaluate and generate take, with plan.json, what it was made from, and report.html. While "
      "training, the\n"
      "run is kept in DIR.training: after an interruption of any kind, --resume with the same\n"
      "options goes on, on the device that it began on, and ends in the same features.\n\n"
      "Example:\n  dofla distill path/to/gpt2 --data wiki.jsonl.zst --cost 64 --out gpt2-linear\n\n"
      "JSON:\n  {\"teacher_loss\", \"student_loss\", \"kl\", \"top1_agreement\", \"dims\", "
      "\"state_bytes\",\n"
      "   \"steps\", \"skipped_steps\", \"seconds\", \"tokens_per_second\", "
      "\"attention_error\",\n"
      "   \"controls\": [{\"name\", \"loss\", \"state_bytes\"}]}; losses in nats a token on "
      "held-out text,\n"
      "   tokens_per_second of training, controls as in dofla evaluate");
  return {app, [options] { run(*options); }};
}

}  // namespace dofla::cli
