#include "dofla/sensitivity/hybrid_loss.h"

#include <algorithm>

#include "dofla/core/error.h"

namespace dofla {
namespace {

using Curve = SensitivityTable::Curve;

LossCurve curve_of_keys(const SensitivityTable& table, Curve added) {
  std::vector<int64_t> ladder = table.key_ladder;
  ladder.push_back(table.length);
  added.push_back(0);
  return {ladder, added};
}

// One feature counts as none, where fewer than the ladder begins with were not measured.
LossCurve curve_of_what_features_leave(const SensitivityTable& table, const Curve& with_features,
                                       double without_features) {
  std::vector<int64_t> ladder = table.ladder;
  Curve left;
  for (const double added : with_features)
    left.push_back(without_features > 0 ? std::clamp(added / without_features, 0.0, 1.0) : 1);
  if (ladder.front() > 1) {
    ladder.insert(ladder.begin(), 1);
    left.insert(left.begin(), 1);
  }
  return {ladder, left};
}

const Curve& keys_of(const SensitivityTable& table, size_t layer) {
  require(!table.key_ladder.empty(), "HybridLoss: the table has no key ladder");
  return table.keys[layer];
}

// The features of a key head: its own, or those of all query heads that share it.
Curve features_of(const SensitivityTable& table, size_t layer, size_t key_head) {
  const auto each = static_cast<size_t>(table.heads_in_layer() / table.key_heads);
  Curve sum(table.ladder.size(), 0);
  for (size_t h = key_head * each; h < (key_head + 1) * each; ++h)
    for (size_t i = 0; i < sum.size(); ++i) sum[i] += table.heads[layer][h][i];
  return sum;
}

}  // namespace

HybridLoss::HybridLoss(const SensitivityTable& table, const Curve& keys, const Curve& features)
    : keys_(curve_of_keys(table, keys)),
      left_(curve_of_what_features_leave(table, features, keys_.at(table.exact.keys))) {}

HybridLoss::HybridLoss(const SensitivityTable& table, size_t layer)
    : HybridLoss(table, keys_of(table, layer), table.layers[layer]) {}

HybridLoss::HybridLoss(const SensitivityTable& table, size_t layer, size_t key_head)
    : HybridLoss(table, table.key_shares[layer][key_head], features_of(table, layer, key_head)) {}

double HybridLoss::at(int64_t keys, int64_t features) const {
  return keys_.at(keys) * (features > 0 ? left_.at(features) : 1);
}

}  // namespace dofla
