#include "dofla/plan/dimension_plan.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <string>

#include "dofla/checkpoint/config_fields.h"
#include "dofla/core/error.h"
#include "dofla/core/saved_json.h"

namespace dofla {
namespace {

constexpr std::string_view kPlanFormat = "dofla.plan";
constexpr int64_t kPlanVersion = 1;

int64_t read_dimension(const Json& entry, const std::string& where) {
  constexpr auto kLargest = static_cast<uint64_t>(DimensionPlan::kLargestDimension);
  const bool sound =
      entry.is_number_unsigned() && entry.get<uint64_t>() >= 1 && entry.get<uint64_t>() <= kLargest;
  if (!sound)
    fail("{}: expected dimensions from 1 to {}, found {}", where, kLargest, excerpt(entry));
  return entry.get<int64_t>();
}

std::vector<std::vector<int64_t>> read_heads(const Json& json, int64_t layers, int64_t heads,
                                             const std::string& where) {
  std::vector<std::vector<int64_t>> out;
  for (const Json& layer : array_field(json, "heads", layers, where)) {
    const std::string in_layer = fmt::format("{}: heads: layer {}", where, out.size() + 1);
    if (layer.is_null()) {
      out.emplace_back();
      continue;
    }
    if (!layer.is_array() || layer.size() != static_cast<size_t>(heads))
      fail("{}: expected {} dimensions, found {}", in_layer, heads, excerpt(layer));
    out.emplace_back();
    for (const Json& entry : layer) out.back().push_back(read_dimension(entry, in_layer));
  }
  return out;
}

}  // namespace

std::optional<TokenCost> DimensionPlan::token_cost(size_t layer) const {
  const ExactKeys keys = exact_keys_of(exact, layer);
  const std::vector<int64_t>& dims = heads[layer];
  if (keys.empty() && dims.empty()) return std::nullopt;
  return dofla::token_cost({.heads = model.heads,
                            .head_size = model.head_size,
                            .key_heads = key_heads,
                            .keys = keys.total_keys(key_heads),
                            .feature_heads = heads_in_layer(),
                            .features = std::accumulate(dims.begin(), dims.end(), int64_t{0})});
}

int64_t DimensionPlan::state_bytes() const {
  int64_t bytes = 0;
  for (size_t layer = 0; layer < heads.size(); ++layer)
    if (const auto held = token_cost(layer)) bytes += held->bytes;
  return bytes;
}

double DimensionPlan::mean() const {
  int64_t sum = 0, count = 0;
  for (const auto& layer : heads) {
    sum = std::accumulate(layer.begin(), layer.end(), sum);
    count += static_cast<int64_t>(layer.size());
  }
  return count == 0 ? 0 : static_cast<double>(sum) / static_cast<double>(count);
}

std::vector<int64_t> DimensionPlan::dims() const {
  std::vector<int64_t> out;
  for (const auto& layer : heads) {
    const int64_t sum = std::accumulate(layer.begin(), layer.end(), int64_t{0});
    if (layer.empty())
      out.push_back(0);
    else
      out.push_back(std::llround(static_cast<double>(sum) / static_cast<double>(layer.size())));
  }
  return out;
}

void require_fits(const DimensionPlan& plan, const ModelConfig& config, FeatureMap features) {
  const ModelIdentity model = identity_of(config);
  if (plan.model != model)
    fail("the plan is for {}, but the model is {}: make a plan from this model's dof.json",
         to_string(plan.model), to_string(model));
  if (!plan.exact.empty() && plan.key_heads != config.kv_heads)
    fail("the plan's exact keys are of {} key heads, the model has {}", plan.key_heads,
         config.kv_heads);
  const int64_t heads = feature_heads(features, config.heads, config.kv_heads);
  if (plan.heads_in_layer() != heads)
    fail(
        "the plan is for {} heads a layer, but {} features belong to the {} {} heads: make it from "
        "degrees of freedom that were measured for {} features",
        plan.heads_in_layer(), name(features), heads, is_untied(features) ? "key" : "query",
        name(features));
}

// What an empty layer has instead of numbers.
template <class Values>
Json or_null(const std::vector<Values>& values, const DimensionPlan& plan) {
  Json json = values;
  for (size_t i = 0; i < plan.heads.size(); ++i)
    if (plan.heads[i].empty()) json[i] = nullptr;
  return json;
}

Json to_json(const DimensionPlan& plan) {
  Json json = {{"format", kPlanFormat},
               {"version", kPlanVersion},
               {"strategy", name(plan.strategy)},
               {"cost", plan.cost},
               {"least", plan.least},
               {"lambda", plan.lambda},
               {"model", to_json(plan.model)},
               {"feature_heads", plan.heads_in_layer()},
               {"dims", or_null(plan.dims(), plan)},
               {"mean", plan.mean()},
               {"state_bytes", plan.state_bytes()}};
  for (size_t layer = 0; layer < plan.heads.size(); ++layer) {
    const std::optional<TokenCost> cost = plan.token_cost(layer);
    json["layer_costs"].push_back(cost ? to_json(*cost) : Json());
  }
  if (plan.strategy == PlanStrategy::kDofHead) json["power"] = plan.power;
  if (plan.by == PlanUnit::kHead) json["heads"] = or_null(plan.heads, plan);
  if (!plan.exact.empty()) {
    json["exact_keys"] = to_json(plan.exact);
    json["key_heads"] = plan.key_heads;
  }
  return json;
}

void save_dimension_plan(const fs::path& path, const DimensionPlan& plan) {
  write_whole(path, to_json(plan).dump() + "\n");
}

DimensionPlan load_dimension_plan(const fs::path& path, Input input) {
  const std::string where = path.string();
  const Json json = load_json(path, input);
  require_format(json, kPlanFormat, kPlanVersion, where);
  const ConfigFields fields(json, where);

  DimensionPlan plan;
  if (!json.contains("model")) fields.refuse("model", "missing");
  plan.model = read_identity(json["model"], where + ": model");
  plan.feature_heads = read_feature_heads(fields, plan.model);
  const auto strategy = find_named<PlanStrategy>(fields.text("strategy").value_or(""));
  if (!strategy) fields.refuse("strategy", "expected " + one_of_names<PlanStrategy>());
  plan.strategy = *strategy;
  plan.cost = fields.size("cost");
  plan.least = fields.optional_size("least").value_or(1);
  plan.lambda = fields.positive("lambda");
  const Json& dims = array_field(json, "dims", plan.model.layers, where);
  const bool each_may_differ =
      plan.strategy == PlanStrategy::kSensitivity && json.contains("heads");
  if (plan.strategy == PlanStrategy::kDofHead || each_may_differ) {
    plan.by = PlanUnit::kHead;
    plan.power = fields.number("power").value_or(1);
    plan.heads = read_heads(json, plan.model.layers, plan.heads_in_layer(), where);
  } else {
    // heads × layers is bounded by what is there: the file has one entry a layer.
    constexpr int64_t kMostHeads = 1 << 16;
    if (plan.model.heads > kMostHeads)
      fail("{}: model: heads: expected at most {}, found {}", where, kMostHeads, plan.model.heads);
    for (const Json& entry : dims) {
      plan.heads.emplace_back();
      if (!entry.is_null())
        plan.heads.back().assign(static_cast<size_t>(plan.heads_in_layer()),
                                 read_dimension(entry, where + ": dims"));
    }
  }
  if (json.contains("exact_keys")) {
    plan.key_heads = fields.size("key_heads");
    if (plan.model.heads % plan.key_heads != 0)
      fields.refuse("key_heads", fmt::format("expected a divisor of {}", plan.model.heads));
    plan.exact = read_exact_keys(json["exact_keys"], plan.model.layers, plan.key_heads,
                                 where + ": exact_keys");
  }
  const bool none = std::ranges::all_of(plan.heads, [](const auto& row) { return row.empty(); });
  if (none && plan.exact.empty()) fail("{}: dims: no layer has features", where);
  if (or_null(plan.dims(), plan) != dims) fail("{}: dims: do not agree with heads", where);
  return plan;
}

}  // namespace dofla
