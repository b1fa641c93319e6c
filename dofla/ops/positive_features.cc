#include "dofla/ops/positive_features.h"

#include "dofla/ops/cpu/positive_features.h"

namespace dofla {

Tensor log_positive_features(const Tensor& x, const Features& features, FeatureSide side) {
  require_heads(x, features, "positive features: x");
  return cpu::log_positive_features(x, features, side);
}

}  // namespace dofla
