#include "dofla/sensitivity/allocate.h"

#include <queue>
#include <tuple>

#include "dofla/core/error.h"
#include "dofla/sensitivity/hybrid_loss.h"
#include "dofla/sensitivity/memory.h"

namespace dofla {
namespace {

std::vector<LossCurve> curves_of(const SensitivityTable& table,
                                 const std::vector<SensitivityTable::Curve>& measured) {
  std::vector<LossCurve> curves;
  curves.reserve(measured.size());
  for (const SensitivityTable::Curve& added : measured) curves.emplace_back(table.ladder, added);
  return curves;
}

}  // namespace

std::vector<int64_t> spend(const std::vector<LossCurve>& curves, int64_t total, int64_t least) {
  const auto count = static_cast<int64_t>(curves.size());
  require(count > 0 && least >= 1 && total / count >= least,
          "spend: {} features for {} curves, at least {} each", total, count, least);
  std::vector<int64_t> features(curves.size(), least);
  using Offer = std::tuple<double, int64_t, int64_t>;  // gain, −M, −curve: the largest comes first
  std::priority_queue<Offer> offers;
  for (int64_t i = 0; i < count; ++i)
    offers.emplace(curves[static_cast<size_t>(i)].gain(least), -least, -i);
  for (int64_t left = total - count * least; left > 0; --left) {
    const auto at = static_cast<size_t>(-std::get<2>(offers.top()));
    offers.pop();
    const int64_t M = ++features[at];
    offers.emplace(curves[at].gain(M), -M, -static_cast<int64_t>(at));
  }
  return features;
}

DimensionPlan allocate(const SensitivityTable& table, const AllocateOptions& options) {
  require(options.strategy == PlanStrategy::kSensitivity,
          "strategy {} needs a file of dofla dof, not a sensitivity", name(options.strategy));
  require(!options.power, "power has no effect with strategy {}; it is for {}",
          name(options.strategy), name(PlanStrategy::kDofHead));
  if (options.memory) {
    require(!options.cost, "a cost has no effect beside a memory, which says what may be spent");
    return allocate_memory(table, options);
  }
  require(!options.recall_share,
          "a share of recall has no effect without a memory: features alone do not "
          "bring back what stood far back");
  const int64_t layers = table.model.layers, heads = table.heads_in_layer();
  DimensionPlan plan =
      fixed_plan(table.model, options.cost.value_or(table.model.head_size), table.feature_heads);
  plan.strategy = options.strategy;
  plan.least = options.least;
  plan.by = options.by.value_or(PlanUnit::kHead);
  require_affordable(plan.cost, plan.least);
  if (plan.by == PlanUnit::kLayer) {
    plan.heads = same_for_all_heads(
        spend(curves_of(table, table.layers), plan.cost * layers, plan.least), heads);
    return plan;
  }
  std::vector<LossCurve> curves;
  for (const auto& layer : table.heads)
    for (LossCurve& curve : curves_of(table, layer)) curves.push_back(std::move(curve));
  const std::vector<int64_t> M = spend(curves, plan.cost * layers * heads, plan.least);
  for (size_t i = 0; i < M.size(); ++i)
    plan.heads[i / static_cast<size_t>(heads)][i % static_cast<size_t>(heads)] = M[i];
  return plan;
}

namespace {

// Of a layer with exact keys: that of its key heads, unless they were planned together.
double hybrid_loss(const SensitivityTable& table, const DimensionPlan& plan, size_t s) {
  const ExactKeys& exact = plan.exact[s];
  const auto features = [&](size_t key_head) {
    const size_t each = plan.heads[s].size() / static_cast<size_t>(table.key_heads);
    return plan.heads[s].empty() ? 0 : plan.heads[s][key_head * each];
  };
  if (plan.by == PlanUnit::kLayer && exact.head_keys.empty())
    return HybridLoss(table, s).at(exact.keys, features(0));
  double sum = 0;
  for (size_t h = 0; h < table.key_shares[s].size(); ++h)
    sum += HybridLoss(table, s, h)
               .at(exact.head_keys.empty() ? exact.keys : exact.head_keys[h], features(h));
  return sum;
}

}  // namespace

std::vector<double> predicted_loss(const SensitivityTable& table, const DimensionPlan& plan) {
  require(plan.model == table.model, "the plan is for {}, the sensitivity of {}",
          to_string(plan.model), to_string(table.model));
  std::vector<double> out;
  for (size_t s = 0; s < plan.heads.size(); ++s) {
    double sum = 0;
    const ExactKeys exact = exact_keys_of(plan.exact, s);
    if (!exact.empty() && !table.key_ladder.empty())
      sum = hybrid_loss(table, plan, s);
    else if (plan.by == PlanUnit::kLayer && !plan.heads[s].empty())
      sum = LossCurve(table.ladder, table.layers[s]).at(plan.heads[s].front());
    else
      for (size_t h = 0; h < plan.heads[s].size(); ++h)
        sum += LossCurve(table.ladder, table.heads[s][h]).at(plan.heads[s][h]);
    out.push_back(sum);
  }
  return out;
}

std::vector<double> predicted_recall(const SensitivityTable& table, const DimensionPlan& plan) {
  if (table.recall.windows == 0) return {};
  const std::vector<std::vector<double>> added =
      table.recall.added_a_token(table.model.layers, table.key_heads, table.length);
  std::vector<double> out;
  for (size_t s = 0; s < added.size(); ++s) {
    const ExactKeys exact = exact_keys_of(plan.exact, s);
    double sum = 0;
    for (size_t h = 0; h < added[s].size() && !exact.empty(); ++h)
      sum += added[s][h] *
             static_cast<double>(table.length - exact.of_head(static_cast<int64_t>(h)).keys);
    out.push_back(sum);
  }
  return out;
}

}  // namespace dofla
