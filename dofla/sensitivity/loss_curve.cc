#include "dofla/sensitivity/loss_curve.h"

#include <algorithm>
#include <cmath>

#include "dofla/core/error.h"

namespace dofla {

std::vector<double> without_growth(const std::vector<double>& values) {
  struct Run {
    double sum;
    size_t count;
    double mean() const { return sum / static_cast<double>(count); }
  };
  std::vector<Run> runs;
  for (const double value : values) {
    runs.push_back({value, 1});
    while (runs.size() >= 2 && runs[runs.size() - 2].mean() < runs.back().mean()) {
      const Run last = runs.back();
      runs.pop_back();
      runs.back().sum += last.sum;
      runs.back().count += last.count;
    }
  }
  std::vector<double> out;
  for (const Run& run : runs) out.insert(out.end(), run.count, run.mean());
  return out;
}

LossCurve::LossCurve(const std::vector<int64_t>& ladder, const std::vector<double>& added) {
  require(ladder.size() >= 2 && ladder.size() == added.size(),
          "LossCurve: {} losses for {} numbers of features, at least 2", added.size(),
          ladder.size());
  const auto slope = [](const Point& a, const Point& b) {
    return (b.added - a.added) / (b.log_features - a.log_features);
  };
  const std::vector<double> falling = without_growth(added);
  for (size_t i = 0; i < ladder.size(); ++i) {
    const Point next = {std::log(static_cast<double>(ladder[i])), std::max(falling[i], 0.0)};
    // A point above the line from the one before it to the next is no part of the hull.
    while (hull_.size() >= 2 &&
           slope(hull_[hull_.size() - 2], hull_.back()) >= slope(hull_[hull_.size() - 2], next))
      hull_.pop_back();
    hull_.push_back(next);
  }
}

double LossCurve::at(int64_t features) const {
  const double x = std::log(static_cast<double>(features));
  const Point &last = hull_.back(), &before = hull_[hull_.size() - 2];
  if (x > last.log_features) {
    if (!(last.added > 0)) return 0;
    const double power =
        std::log(before.added / last.added) / (last.log_features - before.log_features);
    return last.added * std::exp(-power * (x - last.log_features));
  }
  size_t i = 1;  // the line that ends there; the first one also counts below the first point
  while (hull_[i].log_features < x) ++i;
  const Point &a = hull_[i - 1], &b = hull_[i];
  return a.added + (b.added - a.added) * (x - a.log_features) / (b.log_features - a.log_features);
}

}  // namespace dofla
