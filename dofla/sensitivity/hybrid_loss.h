// The loss that a layer or head adds with a cache of K exact keys and M features a head, for any K
// and M from what was measured for a few (docs/sensitivity.md, "Memory").
#pragma once

#include "dofla/sensitivity/loss_curve.h"
#include "dofla/sensitivity/sensitivity_table.h"

namespace dofla {

// Falls with K and with M. At K = the length of the table's windows nothing leaves
// and nothing is added.
class HybridLoss {
 public:
  // Of a table with a key ladder: of a layer with as many in all of its heads, or of one of its key
  // heads.
  HybridLoss(const SensitivityTable& table, size_t layer);
  HybridLoss(const SensitivityTable& table, size_t layer, size_t key_head);

  double at(int64_t keys, int64_t features) const;  // without features a cache alone

 private:
  HybridLoss(const SensitivityTable& table, const SensitivityTable::Curve& keys,
             const SensitivityTable::Curve& features);

  LossCurve keys_;  // that a cache alone adds
  LossCurve left_;  // the part of it that features leave
};

}  // namespace dofla
