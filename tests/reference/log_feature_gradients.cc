#include "tests/reference/log_feature_gradients.h"

#include <cmath>
#include <numeric>

#include "tests/reference/linear_attention.h"

namespace dofla::reference {

LogFeatures::LogFeatures(const AttentionCase& c, const std::vector<double>& from, int64_t x_heads,
                         int64_t sequence, int64_t head)
    : x(from.data() + (sequence * x_heads + head / (c.heads / x_heads)) * c.tokens * c.width),
      logs(log_features(c, from, x_heads, sequence, head)),
      gradient(logs.size(), 0.0),
      sensitivity(logs.size(), 0.0),
      count(c.counts[static_cast<size_t>(head)]),
      offset(std::accumulate(c.counts.begin(), c.counts.begin() + head, int64_t{0})) {}

void LogFeatures::add(int64_t token, int64_t feature, double share, double pair_gradient,
                      double pair_sensitivity) {
  const auto at = static_cast<size_t>(token * count + feature);
  gradient[at] += share * pair_gradient;
  sensitivity[at] += share * pair_sensitivity;
}

void add_feature_gradients(const AttentionCase& c, const LogFeatures& from, Sensitive& grad_z,
                           Sensitive& grad_log_alpha) {
  const double inner_scale = std::pow(static_cast<double>(c.width), -0.25);
  for (int64_t t = 0; t < c.tokens; ++t) {
    for (int64_t m = 0; m < from.count; ++m) {
      const double gradient = from.gradient[static_cast<size_t>(t * from.count + m)];
      const double sensitivity = from.sensitivity[static_cast<size_t>(t * from.count + m)];
      const auto feature = static_cast<size_t>(from.offset + m);
      grad_log_alpha.value[feature] += 0.5 * gradient;
      grad_log_alpha.sensitivity[feature] += std::pow(0.5 * sensitivity, 2);
      for (int64_t d = 0; d < c.width; ++d) {
        const double x = from.x[t * c.width + d] * inner_scale;
        const size_t at = feature * static_cast<size_t>(c.width) + static_cast<size_t>(d);
        grad_z.value[at] += gradient * x;
        grad_z.sensitivity[at] += std::pow(sensitivity * x, 2);
      }
    }
  }
}

}  // namespace dofla::reference
