#include "tests/reference/log_feature_gradients.h"

#include <algorithm>
#include <cmath>

#include <gtest/gtest.h>

#include "tests/reference/compare.h"
#include "tests/reference/linear_attention.h"

namespace dofla::reference {

LogFeatures::LogFeatures(const AttentionCase& c, FeatureSide of, int64_t sequence, int64_t of_head)
    : side(of),
      head(of_head),
      x(nullptr),
      directions(c.z.data() + c.offset(head) * c.width),
      norm_weight(1),
      logs(log_features(c, side, sequence, head)),
      gradient(logs.size(), 0.0),
      sensitivity(logs.size(), 0.0),
      count(c.count(head)) {
  const int64_t size = c.tokens * c.width;
  if (side == FeatureSide::kQueries) {
    x = c.q.data() + (sequence * c.heads + head) * size;
    if (c.untied()) directions = c.u.data() + c.query_offset(head) * c.width;
  } else {
    x = c.k.data() + (sequence * c.key_heads + head / (c.heads / c.key_heads)) * size;
    if (c.untied()) norm_weight = c.norm_weight[c.feature_head(head)];
  }
}

void LogFeatures::add(int64_t token, int64_t feature, double share, double pair_gradient,
                      double pair_sensitivity) {
  const auto at = static_cast<size_t>(token * count + feature);
  gradient[at] += share * pair_gradient;
  sensitivity[at] += share * pair_sensitivity;
}

SensitiveFeatures::SensitiveFeatures(const AttentionCase& c)
    : z(c.z.size()),
      log_alpha(c.log_alpha.size()),
      u(c.u.size()),
      norm_weight(c.norm_weight.size()) {}

void SensitiveFeatures::add(const AttentionCase& c, const LogFeatures& from) {
  const double inner_scale = std::pow(static_cast<double>(c.width), -0.25);
  const bool of_u = c.untied() && from.side == FeatureSide::kQueries;
  const bool of_norm = c.untied() && from.side == FeatureSide::kKeys;
  Sensitive& directions = of_u ? u : z;
  const int64_t first_row = of_u ? c.query_offset(from.head) : c.offset(from.head);
  const auto add_to = [](Sensitive& to, int64_t at, double slope, double gradient,
                         double sensitivity) {
    to.value[static_cast<size_t>(at)] += slope * gradient;
    to.sensitivity[static_cast<size_t>(at)] += std::pow(slope * sensitivity, 2);
  };
  for (int64_t t = 0; t < c.tokens; ++t) {
    const double* x = from.x + t * c.width;
    double square = 0;
    for (int64_t d = 0; d < c.width; ++d) square += x[d] * x[d];
    for (int64_t m = 0; m < from.count; ++m) {
      const double gradient = from.gradient[static_cast<size_t>(t * from.count + m)];
      const double sensitivity = from.sensitivity[static_cast<size_t>(t * from.count + m)];
      add_to(log_alpha, c.offset(from.head) + m, 0.5, gradient, sensitivity);
      for (int64_t d = 0; d < c.width; ++d)
        add_to(directions, (first_row + m) * c.width + d, x[d] * inner_scale, gradient,
               sensitivity);
      if (of_norm)
        add_to(norm_weight, static_cast<int64_t>(c.feature_head(from.head)),
               -square / (2 * std::sqrt(static_cast<double>(c.width))), gradient, sensitivity);
    }
  }
}

void expect_feature_gradients(const FeatureGradients& actual, const SensitiveFeatures& expected,
                              const std::function<double(double, double)>& tolerance,
                              const std::string& what) {
  const auto found = feature_parts(actual);
  const auto wanted = feature_parts(expected);
  for (size_t i = 0; i < found.size(); ++i) {
    const Sensitive& part = *wanted[i].second;
    ASSERT_EQ(found[i].second->defined(), !part.value.empty()) << what << found[i].first;
    if (part.value.empty()) continue;
    const double most = *std::ranges::max_element(part.sensitivity);
    std::vector<double> allowed;
    for (const double x : part.sensitivity) allowed.push_back(tolerance(x, most));
    expect_near(*found[i].second, part.value, allowed,
                what + ", gradient of " + std::string(found[i].first));
  }
}

}  // namespace dofla::reference
