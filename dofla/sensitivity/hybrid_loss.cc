#include "dofla/sensitivity/hybrid_loss.h"

#include <algorithm>

#include "dofla/core/error.h"

namespace dofla {
namespace {

LossCurve curve_of_keys(const SensitivityTable& table, size_t layer) {
  require(!table.key_ladder.empty(), "HybridLoss: the table has no key ladder");
  std::vector<int64_t> ladder = table.key_ladder;
  SensitivityTable::Curve added = table.keys[layer];
  ladder.push_back(table.length);
  added.push_back(0);
  return {ladder, added};
}

// One feature counts as none, where fewer than the ladder begins with were not measured.
LossCurve curve_of_what_features_leave(const SensitivityTable& table, size_t layer,
                                       double without_features) {
  std::vector<int64_t> ladder = table.ladder;
  SensitivityTable::Curve left;
  for (const double added : table.layers[layer])
    left.push_back(without_features > 0 ? std::clamp(added / without_features, 0.0, 1.0) : 1);
  if (ladder.front() > 1) {
    ladder.insert(ladder.begin(), 1);
    left.insert(left.begin(), 1);
  }
  return {ladder, left};
}

}  // namespace

HybridLoss::HybridLoss(const SensitivityTable& table, size_t layer)
    : keys_(curve_of_keys(table, layer)),
      left_(curve_of_what_features_leave(table, layer, keys_.at(table.exact.keys))) {}

double HybridLoss::at(int64_t keys, int64_t features) const {
  return keys_.at(keys) * (features > 0 ? left_.at(features) : 1);
}

}  // namespace dofla
