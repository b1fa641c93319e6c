#include <algorithm>
#include <cmath>
#include <memory>
#include <numeric>

#include "cli/choice_option.h"
#include "cli/command.h"
#include "cli/lambda_option.h"
#include "cli/memory_option.h"
#include "cli/output.h"
#include "cli/usage_error.h"
#include "dofla/core/error.h"
#include "dofla/plan/allocate.h"
#include "dofla/plan/bound.h"
#include "dofla/sensitivity/allocate.h"

namespace dofla::cli {
namespace {

struct PlanArguments {
  std::string table;
  std::optional<PlanStrategy> strategy;
  AllocateOptions allocate;
  LambdaOption lambda;
  bool bound = false;
  double delta = 0.1;
  double t = 1;
  std::string out;
  bool json = false;
};

// What a layer's attention holds of a sequence and does for a token that is decoded.
constexpr std::string_view kCostColumns = "layer       bytes   operations";
std::string cost_columns(const DimensionPlan& plan, size_t layer) {
  const std::optional<TokenCost> cost = plan.token_cost(layer);
  return fmt::format("{:>5}{:>12}{:>13}", layer + 1, cost ? grouped(cost->bytes) : "grows",
                     cost ? grouped(std::llround(cost->operations)) : "grows");
}

std::string cost_lines(const DimensionPlan& plan) {
  double operations = 0;
  int64_t layers = 0;
  for (size_t s = 0; s < plan.heads.size(); ++s)
    if (const std::optional<TokenCost> cost = plan.token_cost(s)) {
      operations += cost->operations;
      ++layers;
    }
  const double tokens =
      softmax_tokens(operations / static_cast<double>(std::max<int64_t>(layers, 1)),
                     plan.model.heads, plan.model.head_size);
  return fmt::format(
      "state   {} a sequence, {} bytes: every token reads it\n"
      "token   {} operations of attention, as many as softmax attention to {:.0f} tokens\n",
      with_bytes_unit(plan.state_bytes()), grouped(plan.state_bytes()),
      grouped(std::llround(operations)), tokens);
}

// A line a layer: its cost, its M, and what they follow from.
std::string plan_text(const DimensionPlan& plan, const std::string& title,
                      const std::vector<std::string>& reasons) {
  const bool by_head = plan.by == PlanUnit::kHead;
  std::string text =
      fmt::format("{}   M{}   {}\n", kCostColumns, by_head ? " (mean)   by head" : "    ", title);
  const std::vector<int64_t> dims = plan.dims();
  for (size_t s = 0; s < reasons.size(); ++s) {
    text += fmt::format("{}   {:<5}", cost_columns(plan, s), dims[s]);
    if (by_head) text += fmt::format("   {}", fmt::join(plan.heads[s], " "));
    text += fmt::format("   {}\n", reasons[s]);
  }
  return text + fmt::format("mean    {:.2f} a head of {}\n", plan.mean(), plan.heads_in_layer()) +
         cost_lines(plan);
}

// A line a layer: its exact keys and features, what they take, and what it adds to the loss.
std::string memory_text(const DimensionPlan& plan, const std::vector<double>& predicted) {
  std::string text =
      fmt::format("{}   loss added, predicted   keys; M of every head, one where all are alike\n",
                  kCostColumns);
  for (size_t s = 0; s < plan.heads.size(); ++s) {
    const ExactKeys& exact = plan.exact[s];
    text += fmt::format("{}   {:<21} ", cost_columns(plan, s), fmt::format("{:.4f}", predicted[s]));
    text += exact.head_keys.empty() ? fmt::format("{}", exact.keys)
                                    : fmt::format("{}", fmt::join(exact.head_keys, " "));
    const bool same =
        std::ranges::count(plan.heads[s], plan.heads[s].front()) == std::ssize(plan.heads[s]);
    text += same ? fmt::format("; {}\n", plan.heads[s].front())
                 : fmt::format("; {}\n", fmt::join(plan.heads[s], " "));
  }
  return text + cost_lines(plan);
}

// The theorem's numbers for the largest head of every layer, and what was measured of that head.
std::string bound_text(const std::vector<LayerBound>& bounds, const DofTable& table,
                       const PlanArguments& options) {
  const auto number = [](const std::optional<double>& value) {
    return value ? fmt::format("{:.3g}", *value) : std::string("–");
  };
  std::string text = fmt::format(
      "The theorem (δ = {}, t = {}), for the largest head of every layer and features from the "
      "leverage density;\nfor Gaussian features no M is enough\n"
      "layer   M at least   (i) error of K   (ii) of sums\n",
      options.delta, options.t);
  for (size_t s = 0; s < bounds.size(); ++s)
    text += fmt::format("{:>5}   {:<10}   {:<14}   {}\n", s + 1, grouped(bounds[s].features),
                        number(bounds[s].kernel), number(bounds[s].sums));
  if (!bounds.front().measured)
    return text + "dofla dof --errors measures the error at this λ, to be shown beside it\n";
  text += "Error of M features: t of the theorem, and as measured\nlayer   density ";
  for (const int64_t M : table.ladder) text += fmt::format("{:>10}", M);
  text += "   largest score\n";
  for (size_t s = 0; s < bounds.size(); ++s) {
    const FeatureErrors& measured = *bounds[s].measured;
    text += fmt::format("{:>5}   theorem ", s + 1);
    for (const auto& t : bounds[s].error_required) text += fmt::format("{:>10}", number(t));
    text += "\n        leverage";
    for (const double error : measured.leverage) text += fmt::format("{:>10}", number(error));
    text += "\n        Gaussian";
    for (const double error : measured.gaussian) text += fmt::format("{:>10}", number(error));
    text += fmt::format("   {}\n", number(measured.largest_score));
  }
  return text;
}

void add_bounds(Json& json, const std::vector<LayerBound>& bounds, const DofTable& table) {
  const auto number = [](const std::optional<double>& value) {
    return value ? Json(*value) : Json();
  };
  for (const LayerBound& bound : bounds) {
    json["bound"].push_back(bound.features);
    Json& layer = json["bounds"].emplace_back(
        Json{{"head", bound.head}, {"kernel", number(bound.kernel)}, {"sums", number(bound.sums)}});
    if (!bound.measured) continue;
    layer["errors"] = to_json(*bound.measured);
    for (const auto& t : bound.error_required) layer["theorem"].push_back(number(t));
  }
  if (bounds.front().measured) json["ladder"] = table.ladder;
}

void run_dof(const PlanArguments& options, const Json& file) {
  const DofTable table = read_dof_table(file, options.table);
  const DimensionPlan plan =
      from_arguments([&] { return allocate(table, options.allocate, options.lambda.value()); });
  const std::vector<DofRow> rows = degrees_of_freedom(table, plan.lambda);
  std::vector<LayerBound> bounds;
  if (options.bound) bounds = theorem_bounds(table, plan.lambda, options.delta, options.t);
  if (!options.out.empty()) save_dimension_plan(options.out, plan);
  if (options.json) {
    Json json = to_json(plan);
    if (options.bound) add_bounds(json, bounds, table);
    return print_json(json);
  }
  std::vector<std::string> reasons;
  reasons.reserve(rows.size());
  for (const DofRow& row : rows) reasons.push_back(dof_text(row.largest(), table.draws));
  print(fmt::format("Feature dimensions, strategy {}, cost {}, λ = {}\n", name(plan.strategy),
                    plan.cost, lambda_text(plan.lambda)) +
        plan_text(plan, "degrees of freedom", reasons));
  if (options.bound) print(bound_text(bounds, table, options));
}

void run_sensitivity(const PlanArguments& options, const Json& file) {
  if (options.lambda.value() || options.bound)
    throw UsageError(
        "λ and the theorem's bound are of degrees of freedom, and a sensitivity has none");
  const SensitivityTable table = read_sensitivity(file, options.table);
  const DimensionPlan plan = from_arguments([&] { return allocate(table, options.allocate); });
  const std::vector<double> predicted = predicted_loss(table, plan);
  const std::vector<double> recall = predicted_recall(table, plan);
  if (!options.out.empty()) save_dimension_plan(options.out, plan);
  if (options.json) {
    Json json = to_json(plan);
    json["predicted"] = predicted;
    if (!recall.empty()) json["predicted_recall"] = recall;
    return print_json(json);
  }
  std::string in_all = fmt::format("added   {:.4f} nats a token in all, predicted\n",
                                   std::accumulate(predicted.begin(), predicted.end(), 0.0));
  if (!recall.empty())
    in_all += fmt::format("recall  {:.4f} nats a token that repeats what stood before, predicted\n",
                          std::accumulate(recall.begin(), recall.end(), 0.0));
  if (options.allocate.memory)
    return print(fmt::format("Exact keys and features a head, strategy {}, in {}\n",
                             name(plan.strategy), with_bytes_unit(*options.allocate.memory)) +
                 memory_text(plan, predicted) + in_all);
  std::vector<std::string> reasons;
  reasons.reserve(predicted.size());
  for (const double added : predicted) reasons.push_back(fmt::format("{:.4f}", added));
  print(fmt::format("Feature dimensions, strategy {} by {}, cost {}\n", name(plan.strategy),
                    name(plan.by), plan.cost) +
        plan_text(plan, "loss added, predicted", reasons) + in_all);
}

void run(PlanArguments options) {
  if (!options.out.empty()) prepare_place(options.out);
  const Json file = load_json(options.table, Input::kFileOrPipe);
  const bool sensitivity = is_sensitivity(file);
  options.allocate.strategy =
      options.strategy.value_or(sensitivity ? PlanStrategy::kSensitivity : PlanStrategy::kDof);
  return sensitivity ? run_sensitivity(options, file) : run_dof(options, file);
}

}  // namespace

Command add_plan(CLI::App& program) {
  CLI::App* app = program.add_subcommand("plan", "Choose the feature dimensions of every layer");
  const auto options = std::make_shared<PlanArguments>();
  app->add_option("FILE", options->table, "what dofla dof or dofla sensitivity saved")->required();
  add_choice(*app, "--strategy", options->strategy,
             fmt::format("{} (left out: {}, or {} for a file of it)", one_of_names<PlanStrategy>(),
                         name(PlanStrategy::kDof), name(PlanStrategy::kSensitivity)));
  CLI::Option* cost = app->add_option("--cost", options->allocate.cost,
                                      "the mean M to spend (left out: the head size)")
                          ->type_name("C")
                          ->check(whole_between(1, DimensionPlan::kLargestDimension));
  CLI::Option* memory =
      add_memory(*app, options->allocate.memory,
                 "that a sequence may take, such as 3MB, instead of --cost: spent on exact keys "
                 "and\nfeatures, from what dofla sensitivity --memory saved")
          ->excludes(cost);
  add_recall_share(*app, options->allocate.recall_share, memory);
  add_number(*app, "--least", options->allocate.least, "no head gets fewer features", "N",
             whole_between(1, DimensionPlan::kLargestDimension))
      ->capture_default_str();
  add_choice(*app, "--by", options->allocate.by,
             "sensitivity: all heads of a layer alike, or each its own (left out: head)");
  options->lambda.add(*app, "the ridge λ, such as 2^-4 (left out: that of FILE)");
  app->add_option("--power", options->allocate.power,
                  "dof-head: M in proportion to this power of the DoF (left out: 1)")
      ->type_name("P")
      ->check(real_between(0, 100));
  CLI::Option* bound =
      app->add_flag("--bound", options->bound, "also print what the theorem asks for and promises");
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
      "M; sensitivity puts the next feature where it saves most of the loss. No M is below "
      "--least.\n\n"
      "Example:\n  dofla plan dof.json --cost 64 --strategy dof --out plan.json\n"
      "  dofla plan sensitivity.json --cost 64 --by head --least 4 --out plan.json\n"
      "  dofla plan sensitivity.json --memory 3MB --out plan.json\n\n"
      "JSON:\n  {\"strategy\", \"cost\", \"least\", \"lambda\", \"model\", \"feature_heads\",\n"
      "   \"dims\": [M a layer], \"mean\", \"state_bytes\", \"layer_costs\": [{\"bytes\" of a "
      "sequence,\n"
      "   all of which a token reads, \"operations\" of a token; null: softmax attention} a "
      "layer],\n"
      "   \"heads\": [[M a head]] where they differ, \"power\" for dof-head, \"bound\": [M a "
      "layer]\n"
      "   and \"bounds\": [{\"head\", \"kernel\", \"sums\"} a layer] with --bound, after dof "
      "--errors with\n"
      "   \"errors\" and \"theorem\" for each M of \"ladder\", \"predicted\": [loss added a layer] "
      "for sensitivity,\n"
      "   \"predicted_recall\": [of tokens that repeat what stood before], \"exact_keys\":\n"
      "   [{\"keys\", \"sinks\", …} a layer] and \"key_heads\" with --memory}");
  return {app, [options] { run(*options); }};
}

}  // namespace dofla::cli
