// Loss added as a function of the number of features, for any number from what was measured for a
// few (docs/sensitivity.md, "Curves").
#pragma once

#include <cstdint>
#include <vector>

namespace dofla {

// The values closest to these, in the sum of squares, that never grow: neighbours in the wrong
// order all take their mean.
std::vector<double> without_growth(const std::vector<double>& values);

// Never grows and is convex: a further feature saves something, and less than the one before.
class LossCurve {
 public:
  // `added` may be noisy: it is taken as at least 0 and not growing, and then from below as a
  // convex function of log M. At least two points, M growing.
  LossCurve(const std::vector<int64_t>& ladder, const std::vector<double>& added);

  // Linear in log M up to the last point, a power of M beyond it.
  double at(int64_t features) const;
  // What one more saves.
  double gain(int64_t features) const { return at(features) - at(features + 1); }

 private:
  struct Point {
    double log_features;
    double added;
  };
  std::vector<Point> hull_;
};

}  // namespace dofla
