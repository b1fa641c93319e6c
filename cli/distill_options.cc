#include "cli/distill_options.h"

#include "cli/choice_option.h"
#include "cli/memory_option.h"

namespace dofla::cli {
namespace {

// Measured sensitivity gives the better plans. It has none for features that it does not train, and
// options of degrees of freedom ask for those.
PlanStrategy strategy_of(const DistillArguments& options) {
  const bool dof = options.lambda.value() || options.samples || options.allocate.power;
  const PlanStrategy left_out =
      dof || !takes_init(options.recipe.features) ? PlanStrategy::kDof : PlanStrategy::kSensitivity;
  return options.strategy.value_or(left_out);
}

void add_feature_options(CLI::App& app, DistillArguments& options) {
  const HelpSection section(app, "Features and plan");
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
                               "sensitivity: all heads of a layer alike, or each its own\n"
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
  CLI::Option* memory =
      add_memory(app, options.allocate.memory,
                 "a sequence may take in all layers together, such as 3MB: exact keys and\n"
                 "features are spread over layers and heads by measured sensitivity");
  for (CLI::Option* option : {cost, plan, start}) option->excludes(memory);
  add_recall_share(app, options.allocate.recall_share, memory);
  options.exact.add(app, "goes to the features (left out: none)", memory, {plan, start});
  options.keep.add(app, plan, start);
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
  const HelpSection section(app, "Training");
  RecipeOptions& recipe = options.recipe;
  const RecipeOptions kl = {.loss = LossKind::kKl}, l2 = {.loss = LossKind::kL2},
                      dijiang = {.features = FeatureMap::kDijiang};
  add_choice(app, "--loss", recipe.loss,
             "softmax, l2 and attention-mse (the weights of keys) and output (what attention\n"
             "gives) train layer by layer; direct trains the whole model on the next token, kl\n"
             "on the teacher's distribution of it (left out: softmax, beside exact keys output,\n"
             "for dijiang direct)");
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

void add_distill_options(CLI::App& app, DistillArguments& options) {
  add_feature_options(app, options);
  add_training_options(app, options);
}

DistillOptions make_job(const DistillArguments& options) {
  DistillOptions job;
  options.training.set(job);
  RecipeOptions recipe = options.recipe;
  recipe.recompute = options.training.recompute();
  if (!options.start.empty()) {
    StudentFeatures start = load_student_features(options.start);
    recipe.features = start.features.map;
    recipe.exact_keys = !start.features.exact.empty();
    job.plan = std::move(start);
  } else if (!options.plan.empty()) {
    DimensionPlan plan = load_dimension_plan(options.plan);
    recipe.exact_keys = !plan.exact.empty();
    job.plan = std::move(plan);
  } else {
    AllocateOptions allocate = options.allocate;
    allocate.strategy = strategy_of(options);
    if (options.exact.given() && !allocate.cost) allocate.cost = kFeaturesBesideExactKeys;
    recipe.exact_keys = options.exact.given() || allocate.memory;
    job.plan = allocate;
  }
  if (options.lambda.value() || options.samples) {
    DofOptions& dof = job.dof.emplace();
    dof.lambda = options.lambda.value().value_or(dof.lambda);
    dof.samples = options.samples.value_or(dof.samples);
  }
  job.coordinates = options.coordinates;
  job.exact = options.exact.value();
  job.keep = options.keep.layers();
  job.keep_count = options.keep.count();
  job.recipe = make_recipe(recipe);
  job.batch = options.batch;
  require_sound(job);
  return job;
}

}  // namespace dofla::cli
