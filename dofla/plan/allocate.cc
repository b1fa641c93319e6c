#include "dofla/plan/allocate.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "dofla/core/error.h"

namespace dofla {
namespace {

// N^P of every head, relative to the largest so that no power overflows.
std::vector<double> weights(const std::vector<double>& dof, double power) {
  const double largest = *std::max_element(dof.begin(), dof.end());
  std::vector<double> out;
  for (const double value : dof) out.push_back(std::pow(value / largest, power));
  return out;
}

// Shares of `total` in proportion to the weights, none below the least. A share raised to it leaves
// less for the others, which may bring further shares below it.
std::vector<double> shares_of_at_least(double least, const std::vector<double>& weight,
                                       int64_t total) {
  std::vector<double> share(weight.size());
  std::vector<bool> raised(weight.size(), false);
  for (bool again = true; again;) {
    again = false;
    double left = static_cast<double>(total), sum = 0;
    for (size_t i = 0; i < weight.size(); ++i) {
      if (raised[i])
        left -= least;
      else
        sum += weight[i];
    }
    for (size_t i = 0; i < weight.size(); ++i) {
      share[i] = raised[i] ? least : left * weight[i] / sum;
      if (share[i] < least) again = raised[i] = true;
    }
  }
  return share;
}

void require_dof(const std::vector<double>& dof, int64_t cost, int64_t least) {
  require(!dof.empty(), "no degrees of freedom to allocate for");
  for (const double value : dof)
    require(value > 0 && std::isfinite(value),
            "degrees of freedom: expected a positive number, found {}", value);
  require(cost >= 1 && cost <= DimensionPlan::kLargestDimension,
          "cost: expected from 1 to {}, found {}", DimensionPlan::kLargestDimension, cost);
  require(least >= 1 && least <= cost, "least: expected from 1 to the cost of {}, found {}", cost,
          least);
}

std::vector<std::vector<int64_t>> allocate_each_head(const std::vector<DofRow>& rows, int64_t cost,
                                                     double power, int64_t least) {
  std::vector<double> dof;
  for (const DofRow& row : rows)
    for (const DofEstimate& head : row.heads) dof.push_back(head.mean);
  const std::vector<int64_t> M = allocate_heads(dof, cost, power, least);
  std::vector<std::vector<int64_t>> out;
  auto next = M.begin();
  for (const DofRow& row : rows) {
    const auto end = next + static_cast<int64_t>(row.heads.size());
    out.emplace_back(next, end);
    next = end;
  }
  return out;
}

}  // namespace

void require_affordable(int64_t cost, int64_t least) {
  if (cost < 1 || cost > DimensionPlan::kLargestDimension)
    fail("cost: expected from 1 to {}, found {}", DimensionPlan::kLargestDimension, cost);
  if (least < 1) fail("least: expected at least 1, found {}", least);
  if (least > cost)
    fail(
        "a cost of {} features a head cannot give every head {}: raise the cost or lower the least",
        cost, least);
}

std::vector<std::vector<int64_t>> same_for_all_heads(const std::vector<int64_t>& layers,
                                                     int64_t heads) {
  std::vector<std::vector<int64_t>> out;
  for (const int64_t M : layers) out.emplace_back(static_cast<size_t>(heads), M);
  return out;
}

std::vector<int64_t> allocate_layers(const std::vector<double>& dof, int64_t cost, int64_t least) {
  require_dof(dof, cost, least);
  const auto layers = static_cast<int64_t>(dof.size());
  const double mean = std::accumulate(dof.begin(), dof.end(), 0.0) / static_cast<double>(layers);
  std::vector<int64_t> out;
  for (const double value : dof)
    out.push_back(std::max(
        least, static_cast<int64_t>(std::llround(static_cast<double>(cost) * (value / mean)))));

  const int64_t allowed = layers * cost + layers / 2;
  for (int64_t sum = std::accumulate(out.begin(), out.end(), int64_t{0}); sum > allowed; --sum)
    --*std::max_element(out.begin(), out.end());
  return out;
}

std::vector<int64_t> allocate_heads(const std::vector<double>& dof, int64_t cost, double power,
                                    int64_t least) {
  require_dof(dof, cost, least);
  require(power >= 0 && std::isfinite(power), "power: expected 0 or more, found {}", power);
  const int64_t total = static_cast<int64_t>(dof.size()) * cost;
  const std::vector<double> share =
      shares_of_at_least(static_cast<double>(least), weights(dof, power), total);

  std::vector<int64_t> out;
  for (const double value : share) out.push_back(static_cast<int64_t>(std::floor(value)));
  std::vector<size_t> order(share.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) {
    return share[a] - std::floor(share[a]) > share[b] - std::floor(share[b]);
  });
  int64_t left = total - std::accumulate(out.begin(), out.end(), int64_t{0});
  for (size_t i = 0; left > 0; i = (i + 1) % order.size(), --left) ++out[order[i]];
  return out;
}

DimensionPlan allocate(const DofTable& table, const AllocateOptions& options,
                       std::optional<double> lambda) {
  require(!options.power || options.strategy == PlanStrategy::kDofHead,
          "power has no effect with strategy {}; it is for {}", name(options.strategy),
          name(PlanStrategy::kDofHead));
  require(options.strategy != PlanStrategy::kSensitivity,
          "strategy {} needs a file of dofla sensitivity, not degrees of freedom",
          name(options.strategy));
  require(!options.memory, "a memory has no effect with strategy {}; it is for {}",
          name(options.strategy), name(PlanStrategy::kSensitivity));
  require(!options.by, "by has no effect with strategy {}; it is for {}", name(options.strategy),
          name(PlanStrategy::kSensitivity));
  DimensionPlan plan = {.model = table.model,
                        .feature_heads = table.feature_heads,
                        .strategy = options.strategy,
                        .cost = options.cost.value_or(table.model.head_size),
                        .lambda = lambda.value_or(table.lambda),
                        .power = options.power.value_or(1),
                        .least = options.least,
                        .by = {},
                        .heads = {}};
  require_affordable(plan.cost, plan.least);
  if (!(plan.power >= 0 && std::isfinite(plan.power)))
    fail("power: expected 0 or more, found {}", plan.power);
  const std::vector<DofRow> rows = degrees_of_freedom(table, plan.lambda);
  if (options.strategy == PlanStrategy::kFix) {
    plan.heads = fixed_plan(table.model, plan.cost, table.feature_heads).heads;
  } else if (options.strategy == PlanStrategy::kDofHead) {
    plan.by = PlanUnit::kHead;
    plan.heads = allocate_each_head(rows, plan.cost, plan.power, plan.least);
  } else {
    std::vector<double> largest;
    for (const DofRow& row : rows) largest.push_back(row.largest().mean);
    std::vector<int64_t> layers = allocate_layers(largest, plan.cost, plan.least);
    const bool clip = options.strategy == PlanStrategy::kDofClip;
    if (clip && plan.least > table.model.head_size)
      fail("least {} has no place below the head size of {}, at which {} clips", plan.least,
           table.model.head_size, name(options.strategy));
    if (clip)
      for (int64_t& M : layers) M = std::min(M, table.model.head_size);
    plan.heads = same_for_all_heads(layers, table.heads_in_layer());
  }
  return plan;
}

DimensionPlan fixed_plan(const ModelIdentity& model, int64_t cost, int64_t feature_heads) {
  const std::vector<int64_t> layers(static_cast<size_t>(model.layers), cost);
  return {.model = model,
          .feature_heads = feature_heads,
          .strategy = PlanStrategy::kFix,
          .cost = cost,
          .lambda = kDefaultLambda,
          .power = 1,
          .least = 1,
          .by = PlanUnit::kLayer,
          .heads = same_for_all_heads(layers, feature_heads > 0 ? feature_heads : model.heads)};
}

}  // namespace dofla
