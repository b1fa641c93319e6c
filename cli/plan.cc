#include <memory>

#include "cli/choice_option.h"
#include "cli/command.h"
#include "cli/lambda_option.h"
#include "cli/output.h"
#include "cli/usage_error.h"
#include "dofla/core/error.h"
#include "dofla/plan/allocate.h"

namespace dofla::cli {
namespace {

struct PlanArguments {
  std::string table;
  AllocateOptions allocate;
  LambdaOption lambda;
  bool bound = false;
  double delta = 0.1;
  double t = 1;
  std::string out;
  bool json = false;
};

std::string plan_text(const DimensionPlan& plan, const std::vector<DofRow>& rows, int64_t draws) {
  const bool by_head = plan.strategy == PlanStrategy::kDofHead;
  std::string text = fmt::format(
      "Feature dimensions, strategy {}, cost {}, λ = {}\n"
      "layer   M{}   degrees of freedom\n",
      name(plan.strategy), plan.cost, lambda_text(plan.lambda),
      by_head ? " (mean)   by head" : "    ");
  const std::vector<int64_t> dims = plan.dims();
  for (size_t s = 0; s < rows.size(); ++s) {
    text += fmt::format("{:>5}   {:<5}", s + 1, dims[s]);
    if (by_head) text += fmt::format("   {}", fmt::join(plan.heads[s], " "));
    text += fmt::format("   {}\n", dof_text(rows[s].largest(), draws));
  }
  return text + fmt::format("mean    {:.2f} a head of {}\nstate   {} a sequence\n", plan.mean(),
                            plan.heads_in_layer(), with_bytes_unit(plan.state_bytes()));
}

std::vector<int64_t> bounds(const std::vector<DofRow>& rows, const PlanArguments& options) {
  std::vector<int64_t> out;
  out.reserve(rows.size());
  for (const DofRow& row : rows)
    out.push_back(features_required(row.largest().mean, options.delta, options.t));
  return out;
}

std::string bound_text(const std::vector<int64_t>& bound, const PlanArguments& options) {
  std::string text = fmt::format("The theorem (δ = {}, t = {}) asks for M of at least\n",
                                 options.delta, options.t);
  for (size_t s = 0; s < bound.size(); ++s)
    text += fmt::format("{:>5}   {}\n", s + 1, grouped(bound[s]));
  return text;
}

void run(const PlanArguments& options) {
  if (!options.out.empty()) prepare_place(options.out);
  const DofTable table = load_dof_table(options.table);
  const DimensionPlan plan =
      from_arguments([&] { return allocate(table, options.allocate, options.lambda.value()); });
  const std::vector<DofRow> rows = degrees_of_freedom(table, plan.lambda);
  const std::vector<int64_t> bound = options.bound ? bounds(rows, options) : std::vector<int64_t>();
  if (!options.out.empty()) save_dimension_plan(options.out, plan);
  if (options.json) {
    Json json = to_json(plan);
    if (options.bound) json["bound"] = bound;
    return print_json(json);
  }
  print(plan_text(plan, rows, table.draws));
  if (options.bound) print(bound_text(bound, options));
}

}  // namespace

Command add_plan(CLI::App& program) {
  CLI::App* app = program.add_subcommand("plan", "Choose the feature dimensions of every layer");
  const auto options = std::make_shared<PlanArguments>();
  app->add_option("DOF", options->table, "what dofla dof saved: dof.json")->required();
  add_choice(*app, "--strategy", options->allocate.strategy, one_of_names<PlanStrategy>());
  app->add_option("--cost", options->allocate.cost, "the mean M to spend (left out: the head size)")
      ->type_name("C")
      ->check(whole_between(1, DimensionPlan::kLargestDimension));
  options->lambda.add(*app, "the ridge λ, such as 2^-4 (left out: that of DOF)");
  app->add_option("--power", options->allocate.power,
                  "dof-head: M in proportion to this power of the DoF (left out: 1)")
      ->type_name("P")
      ->check(real_between(0, 100));
  CLI::Option* bound =
      app->add_flag("--bound", options->bound, "also print the M that the theorem asks for");
  app->add_option("--delta", options->delta, "its probability of failure, between 0 and 1")
      ->capture_default_str()
      ->type_name("X")
      ->check(real_between(1e-9, 1 - 1e-9))
      ->needs(bound);
  app->add_option("--t", options->t, "its relative error, at most 3")
      ->capture_default_str()
      ->type_name("X")
      ->check(real_between(1e-6, 3))
      ->needs(bound);
  add_out(*app, options->out, "save the plan", "F");
  add_json_flag(*app, options->json);
  app->footer(
      "fix gives every layer M = C; dof gives a layer M in proportion to its degrees of freedom "
      "at\n"
      "the same mean; dof-clip then takes at most the head size; dof-head gives every head its "
      "own\n"
      "M. No M is below 1.\n\n"
      "Example:\n  dofla plan dof.json --cost 64 --strategy dof --out plan.json\n\n"
      "JSON:\n  {\"strategy\", \"cost\", \"lambda\", \"model\", \"feature_heads\", \"dims\": [M a "
      "layer],\n"
      "   \"mean\", \"state_bytes\",\n"
      "   \"heads\": [[M a head]] and \"power\" for dof-head, \"bound\": [M a layer] with "
      "--bound}");
  return {app, [options] { run(*options); }};
}

}  // namespace dofla::cli
