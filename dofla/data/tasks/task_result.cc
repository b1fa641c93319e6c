#include "dofla/data/tasks/task_result.h"

#include <cmath>

namespace dofla {

// The standard error of a mean, from the variance of the values: that of n values p of which are 1
// and the others 0 is p(1 − p) n/(n − 1).
Accuracy accuracy(const std::vector<double>& right) {
  const auto n = static_cast<double>(right.size());
  double sum = 0, squares = 0;
  for (const double value : right) sum += value;
  const double mean = sum / n;
  for (const double value : right) squares += (value - mean) * (value - mean);
  return {mean, std::sqrt(squares / n / (n - 1))};
}

}  // namespace dofla
