#include "dofla/train/schedule.h"

#include <cmath>

#include "dofla/core/error.h"

namespace dofla {

double rate_at(const Schedule& schedule, int64_t step) {
  require(step >= 0 && step < schedule.steps, "schedule: step {} of {}", step, schedule.steps);
  require(schedule.warmup >= 0 && schedule.warmup < 1,
          "schedule: expected a warm-up share in [0, 1), found {}", schedule.warmup);
  const auto steps = static_cast<double>(schedule.steps), at = static_cast<double>(step);
  const double rising = std::ceil(schedule.warmup * steps);
  if (at < rising) return (at + 1) / rising;
  return schedule.decay == Decay::kNone ? 1 : (steps - at) / (steps - rising);
}

}  // namespace dofla
