// One axis of a chart: from values to positions in the drawing, and the ticks to label it with.
#pragma once

#include <string>
#include <vector>

namespace dofla {

enum class Scale { kLinear, kLog2, kLog10 };

// Whether a value has a place on the scale: finite, of a sane size, and positive on a logarithm.
bool has_place(Scale scale, double value);

// The range of values that an axis must show; grows with every value that has a place.
struct Extent {
  Scale scale;
  double low = 0;
  double high = 0;
  bool empty = true;

  void include(double value);
};

struct Tick {
  double position = 0;
  std::string label;
};

class Axis {
 public:
  // Spreads the extent from `begin` to `end` of the drawing. An empty extent gives a plain axis.
  Axis(const Extent& extent, double begin, double end);

  double at(double value) const;    // the position of a value that has a place
  std::vector<Tick> ticks() const;  // at most about eight, in order

 private:
  // A place is the value itself, or its logarithm to the base of the scale.
  double place(double value) const;
  double value_at(double place) const;
  double position(double place) const;
  std::vector<double> tick_places() const;

  Scale scale_;
  double low_, high_;  // places
  double begin_, end_;
};

}  // namespace dofla
