#include <algorithm>
#include <chrono>
#include <memory>

#include <sys/resource.h>

#include "cli/command.h"
#include "cli/device_option.h"
#include "cli/distill_report.h"
#include "cli/lambda_option.h"
#include "cli/output.h"
#include "cli/progress_bar.h"
#include "cli/training_run.h"
#include "dofla/core/error.h"
#include "dofla/linear/linear_model.h"
#include "dofla/pipeline.h"

namespace dofla::cli {
namespace {

struct Options {
  ModelArgument model;
  DeviceOption device;
  TrainingRun training;
  TextArguments text;
  LambdaOption lambda;
  std::string plan, start, strategy = "dof", features = "prf", init = "pairs";
  std::string loss = "softmax", mask = "causal";
  int64_t held_out = 16;
  LearningRates rates;
  DistillOptions job = {.plan = {},
                        .start = {},
                        .allocate = {},
                        .dof = {.sample = {.samples = 1024, .draws = 1, .seed = 0}},
                        .features = {},
                        .loss = {},
                        .train = {.steps = 400},
                        .device = {},
                        .checkpoint = {},
                        .run = {}};
  bool dry_run = false;
  bool json = false;
};

DistillText read_text(const Options& options, const Checkpoint& checkpoint,
                      const Progress& progress) {
  return split_held_out(options.text.read(checkpoint, progress), options.held_out);
}

// Goes on from the features of a student, which also give the plan.
void go_on_from(const fs::path& student, DistillOptions& job) {
  const fs::path plan = student / "plan.json";
  job.start = load_features(Checkpoint(student));
  job.features.map = job.start->map;
  job.plan = load_dimension_plan(plan, Input::kFile);
  if (job.plan->heads != job.start->counts())
    fail("{}: is not the plan of the features beside it", plan.string());
}

DistillOptions complete(const Options& options, const Checkpoint& checkpoint,
                        const DistillText& text) {
  DistillOptions job = options.job;
  options.training.set(job);
  job.allocate.strategy = named<PlanStrategy>(options.strategy);
  job.allocate.lambda = options.lambda.value().value_or(0x1p-8);
  job.dof.lambda = job.allocate.lambda;
  job.dof.sample.seed = job.seed;
  if (!options.plan.empty()) job.plan = load_dimension_plan(options.plan);
  job.features.map = named<FeatureMap>(options.features);
  job.features.init = named<FeatureInit>(options.init);
  if (!options.start.empty()) go_on_from(options.start, job);
  job.features.seed = job.seed;
  job.features.lambda = job.allocate.lambda;
  job.loss.mask = options.mask == "full" ? PairMask::kFull : PairMask::kCausal;
  job.device = options.device.get();
  job.follow(make_recipe(options.loss, job.features.map, job.train.steps, options.rates));
  job.run = distill_settings(checkpoint, text, job);
  return job;
}

void estimate(const Options& options, const Checkpoint& checkpoint, const DistillText& text,
              const DistillOptions& job) {
  const double step = job.train.steps == 0 ? 0 : measure_step_seconds(checkpoint, text, job);
  rusage usage = {};
  getrusage(RUSAGE_SELF, &usage);
  const double seconds = step * static_cast<double>(job.train.steps);
  const int64_t bytes = int64_t{usage.ru_maxrss} * 1024;
  if (options.json)
    return print_json({{"dry_run", true},
                       {"steps", job.train.steps},
                       {"step_seconds", step},
                       {"seconds", seconds},
                       {"peak_bytes", bytes}});
  print(
      fmt::format("steps          {} of {} x {} tokens\n"
                  "a step         {:.2f} s\n"
                  "training       about {:.0f} s\n"
                  "memory         about {}\n",
                  job.train.steps, job.batch, text.train.front().size(), step, seconds,
                  with_bytes_unit(bytes)));
}

void run(const Options& options, const Checkpoint& checkpoint, const std::atomic<bool>* stop) {
  const auto start = std::chrono::steady_clock::now();
  Distilled result;
  DistillOptions job;
  {
    ProgressBar bar(stop);
    const DistillText text = read_text(options, checkpoint, bar.progress());
    job = complete(options, checkpoint, text);
    if (options.dry_run) return estimate(options, checkpoint, text, job);
    result = distill(checkpoint, text, job, options.training.logged(bar.progress()));
  }
  NewFolder out(options.training.out());
  job.run.update(provenance(options.text.files()));
  write_linear_model(out.path(), checkpoint, result.features, job.run);
  write_distill_report(out.path(), checkpoint, job, result);
  out.commit();
  fs::remove(job.checkpoint);
  const double seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  if (options.json) return print_json(distill_json(job, result, seconds));
  print(distill_table(checkpoint, job, result, seconds));
  remark(fmt::format("{0}: model, dof.json and plan.json; open {0}/report.html",
                     options.training.out()));
}

void run(const Options& options) {
  const Checkpoint checkpoint(options.model.folder());
  if (is_linear(checkpoint))
    fail("{}: is a linear-attention model already; distil its teacher",
         checkpoint.folder().string());
  if (options.dry_run) return run(options, checkpoint, nullptr);
  options.training.guard([&](const std::atomic<bool>* stop) { run(options, checkpoint, stop); });
}

void add_feature_options(CLI::App& app, Options& options) {
  app.add_option("--cost", options.job.allocate.cost, "features a head on average")
      ->capture_default_str()
      ->type_name("C")
      ->check(whole_between(1, DimensionPlan::kLargestDimension));
  app.add_option("--strategy", options.strategy, "how the features are spread over the layers")
      ->capture_default_str()
      ->type_name("NAME")
      ->check(CLI::IsMember(all_names<PlanStrategy>()));
  app.add_option("--power", options.job.allocate.power, "of the degrees of freedom, for dof-head")
      ->capture_default_str()
      ->type_name("P")
      ->check(real_between(0, 100));
  app.add_option("--plan", options.plan, "a plan of dofla plan, instead of --cost and --strategy")
      ->type_name("F");
  app.add_option("--start", options.start,
                 "a student of the same teacher to go on from, instead of a plan and drawn\n"
                 "features: for instance softmax first, then direct")
      ->type_name("DIR")
      ->excludes("--plan");
  options.lambda.add(app, "the ridge λ of the degrees of freedom (left out: 2^-8)");
  app.add_option("--samples", options.job.dof.sample.samples,
                 "queries and keys a head that the degrees of freedom are measured on")
      ->capture_default_str()
      ->type_name("J")
      ->check(whole_from(1));
  app.add_option("--features", options.features,
                 "the feature map; performer is not trained, of dijiang the weights")
      ->capture_default_str()
      ->type_name("NAME")
      ->check(CLI::IsMember(all_names<FeatureMap>()));
  app.add_option("--init", options.init, "how prf features are drawn before training")
      ->capture_default_str()
      ->type_name("NAME")
      ->check(CLI::IsMember(all_names<FeatureInit>()));
}

void add_training_options(CLI::App& app, Options& options) {
  DistillOptions& job = options.job;
  app.add_option("--loss", options.loss,
                 "softmax, l2 and attention-mse train layer by layer; direct trains\n"
                 "the whole model on the next token")
      ->capture_default_str()
      ->type_name("NAME")
      ->check(CLI::IsMember(loss_names()));
  app.add_option("--mask", options.mask, "pairs of query and key in the objective")
      ->capture_default_str()
      ->type_name("NAME")
      ->check(CLI::IsMember({"causal", "full"}));
  add_number(app, "--steps", job.train.steps, "optimizer steps", "N", whole_from(0))
      ->capture_default_str();
  add_number(app, "--batch", job.batch, "windows a step", "B", whole_between(1, 1 << 20))
      ->capture_default_str();
  add_number(app, "--lr-z", options.rates.z, "learning rate of z (left out: 0.05, for l2 0.002)",
             "R", real_between(0, 1e3));
  add_number(app, "--lr-alpha", options.rates.alpha,
             "of log α (left out: 0.2, for l2 and dijiang 0.02)", "R", real_between(0, 1e3));
  add_number(app, "--held-out", options.held_out,
             "last windows of the text, kept to judge the student by", "T", whole_from(1))
      ->capture_default_str();
  options.training.add(app, "of features and batches", "50",
                       "with direct: less memory for a third more time");
  app.add_flag("--dry-run", options.dry_run, "only estimate time and memory");
}

}  // namespace

Command add_distill(CLI::App& program) {
  CLI::App* app = program.add_subcommand(
      "distill", "Turn a softmax model into a linear-attention model and say how good it is");
  const auto options = std::make_shared<Options>();
  options->model.add(*app);
  options->device.add(*app);
  options->text.add(*app);
  options->training.add_out(*app);
  add_feature_options(*app, *options);
  add_training_options(*app, *options);
  add_json_flag(*app, options->json);
  app->footer(
      "The degrees of freedom of every head are measured, turned into a plan, the features "
      "trained\n"
      "layer by layer on the teacher's own queries and keys (with --loss direct, all together on "
      "the\n"
      "next token; with performer not at all), and the student compared with its\n"
      "teacher on windows that it was not trained on. DIR is a complete model folder that "
      "inspect,\n"
      "evaluate and generate take, with dof.json, plan.json and report.html. While training, the\n"
      "run is kept in DIR.training: after an interruption of any kind, --resume with the same\n"
      "options goes on, on the device that it began on, and ends in the same features.\n\n"
      "Example:\n  dofla distill path/to/gpt2 --data wiki.jsonl.zst --cost 64 --out gpt2-linear\n\n"
      "JSON:\n  {\"teacher_loss\", \"student_loss\", \"kl\", \"top1_agreement\", \"dims\", "
      "\"steps\",\n"
      "   \"skipped_steps\", \"seconds\", \"tokens_per_second\"}; losses in nats a token on "
      "held-out\n"
      "   text, tokens_per_second of training");
  return {app, [options] { run(*options); }};
}

}  // namespace dofla::cli
