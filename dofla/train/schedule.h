// How the learning rate goes over a run.
#pragma once

#include <cstdint>

namespace dofla {

enum class Decay { kNone, kLinear };

struct Schedule {
  int64_t steps = 0;  // of the whole run
  double warmup = 0;  // the share of them, in [0, 1), over which the rate rises from 0
  Decay decay = Decay::kLinear;
};

// What the learning rate of step 0, 1, … is multiplied by, in (0, 1]. It rises linearly to 1, which
// the last step of the warm-up has; from there it stays, or falls linearly and would be 0 one step
// after the last.
double rate_at(const Schedule& schedule, int64_t step);

}  // namespace dofla
