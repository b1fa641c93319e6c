// Gradients of a model's parameters against the slope of its float32 loss.
#pragma once

#include <algorithm>
#include <cmath>
#include <functional>
#include <string>

#include <gtest/gtest.h>

#include "dofla/checkpoint/safetensors.h"
#include "dofla/core/random.h"
#include "dofla/ops/adam.h"

namespace dofla::test {

// The loss of a model as a function of some of its parameters, along a random direction in them.
class Line {
 public:
  Line(const NamedTensors& along, std::function<double()> loss, Random& random)
      : loss_(std::move(loss)) {
    for (const auto& [name, tensor] : along) {
      points_.push_back({tensor, tensor.clone(), Tensor(tensor.shape())});
      for (int64_t i = 0; i < tensor.count(); ++i)
        points_.back().direction.data<float>()[i] = random.uniform() < 0.5 ? -1.0f : 1.0f;
    }
  }
  ~Line() { move_to(0); }
  Line(const Line&) = delete;
  Line& operator=(const Line&) = delete;

  double loss(double step) {
    move_to(step);
    return loss_();
  }
  double slope(double step) { return (loss(step) - loss(-step)) / (2 * step); }

  // How much the loss moves by rounding alone: steps too small to matter.
  double noise() {
    const double at = loss(0);
    double most = 0;
    for (int i = 1; i <= 8; ++i) most = std::max(most, std::abs(loss(i * 3e-7) - at));
    return most;
  }

  double dot(const NamedTensors& gradients) const {
    double sum = 0;
    for (size_t i = 0; i < points_.size(); ++i)
      for (int64_t j = 0; j < points_[i].start.count(); ++j)
        sum += static_cast<double>(gradients[i].second.data<float>()[j]) *
               std::as_const(points_[i].direction).data<float>()[j];
    return sum;
  }

 private:
  struct Point {
    Tensor tensor, start, direction;
  };

  void move_to(double step) {
    for (Point& point : points_)
      for (int64_t i = 0; i < point.start.count(); ++i)
        point.tensor.data<float>()[i] = static_cast<float>(point.start.data<float>()[i] +
                                                           step * point.direction.data<float>()[i]);
  }

  std::function<double()> loss_;
  std::vector<Point> points_;
};

inline double norm_of(const NamedTensors& tensors) {
  double norm = 0;
  for (const auto& [name, tensor] : tensors)
    norm = std::hypot(norm, gradient_norm({&tensor, 1}).data<double>()[0]);
  return norm;
}

// Doubling the step tells how far the slope is from the limit, rounding of the loss adds its noise
// (twice what eight samples show), and the gradients, those of the parameters in `along`, are
// rounded too: by `rounding`.
inline void expect_slope(const NamedTensors& along, const NamedTensors& gradients,
                         const std::function<double()>& loss, double step, double rounding,
                         const std::string& what) {
  Random random(9);
  Line line(along, loss, random);
  const double slope = line.slope(step), wider = line.slope(2 * step);
  const double tolerance = std::abs(wider - slope) + 2 * line.noise() / step + rounding;
  EXPECT_NEAR(line.dot(gradients), slope, tolerance) << what;
  EXPECT_LT(tolerance, norm_of(gradients) / 4) << what << ": the test sees nothing";
}

}  // namespace dofla::test
