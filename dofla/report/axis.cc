#include "dofla/report/axis.h"

#include <algorithm>
#include <cmath>

#include "dofla/report/text.h"

namespace dofla {
namespace {

constexpr double kMostTicks = 7;
constexpr double kFewDecades = 2.5;  // below this powers of ten alone would be too sparse

// The smallest of 1, 2, 5 times a power of ten that divides `range` into at most kMostTicks.
double nice_step(double range) {
  const double power = std::pow(10, std::floor(std::log10(range / kMostTicks)));
  for (const double factor : {1.0, 2.0, 5.0})
    if (factor * power * kMostTicks >= range) return factor * power;
  return 10 * power;
}

}  // namespace

bool has_place(Scale scale, double value) {
  // Past 1e200 the difference of two values could overflow; nothing measured comes near.
  if (!std::isfinite(value) || std::abs(value) > 1e200) return false;
  return scale == Scale::kLinear || value > 0;
}

void Extent::include(double value) {
  if (!has_place(scale, value)) return;
  low = empty ? value : std::min(low, value);
  high = empty ? value : std::max(high, value);
  empty = false;
}

Axis::Axis(const Extent& extent, double begin, double end)
    : scale_(extent.scale), begin_(begin), end_(end) {
  low_ = extent.empty ? 0 : place(extent.low);
  high_ = extent.empty ? 1 : place(extent.high);
  const double least = scale_ == Scale::kLinear ? 1e-6 * std::max(std::abs(high_), 1e-6) : 0.01;
  if (high_ - low_ < least) {  // one value only: put it in the middle
    low_ -= least;
    high_ += least;
  }
}

double Axis::place(double value) const {
  if (scale_ == Scale::kLog2) return std::log2(value);
  return scale_ == Scale::kLog10 ? std::log10(value) : value;
}

double Axis::value_at(double at_place) const {
  if (scale_ == Scale::kLog2) return std::exp2(at_place);
  return scale_ == Scale::kLog10 ? std::pow(10.0, at_place) : at_place;
}

double Axis::position(double at_place) const {
  return begin_ + (at_place - low_) / (high_ - low_) * (end_ - begin_);
}

double Axis::at(double value) const {
  return position(place(value));
}

std::vector<double> Axis::tick_places() const {
  std::vector<double> places;
  const double low_value = value_at(low_), high_value = value_at(high_);
  const bool narrow = scale_ == Scale::kLog10 && high_ - low_ < 0.8;
  if (scale_ == Scale::kLinear || narrow) {  // even steps of the value itself
    const double step = nice_step(high_value - low_value);
    const double first = std::ceil(low_value / step);
    for (int i = 0; i <= kMostTicks; ++i) places.push_back(place((first + i) * step));
    return places;
  }
  const double first = std::floor(low_);
  if (scale_ == Scale::kLog10 && high_ - low_ < kFewDecades) {  // few decades: 1, 2 and 5 of each
    for (double decade = first; decade <= high_; ++decade)
      for (const double digit : {1.0, 2.0, 5.0}) places.push_back(decade + std::log10(digit));
    return places;
  }
  double stride = std::max(1.0, std::ceil((high_ - low_) / kMostTicks));
  if (scale_ == Scale::kLog2) stride = std::exp2(std::ceil(std::log2(stride)));
  for (double exponent = std::floor(low_ / stride) * stride; exponent <= high_; exponent += stride)
    places.push_back(exponent);
  return places;
}

std::vector<Tick> Axis::ticks() const {
  const double slack = 1e-9 * (high_ - low_);
  const bool powers =
      scale_ == Scale::kLog2 || (scale_ == Scale::kLog10 && high_ - low_ >= kFewDecades);
  const int base = scale_ == Scale::kLog2 ? 2 : 10;
  std::vector<Tick> ticks;
  for (const double at_place : tick_places()) {
    if (!(at_place >= low_ - slack && at_place <= high_ + slack)) continue;
    const bool short_number = base == 10 && at_place >= 0 && at_place <= 3;
    ticks.push_back({position(at_place), powers && !short_number
                                             ? format_power(base, std::llround(at_place))
                                             : format_number(value_at(at_place))});
  }
  return ticks;
}

}  // namespace dofla
