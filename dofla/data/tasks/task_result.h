// How well a model does on a multiple-choice task.
#pragma once

#include <cstdint>

namespace dofla {

struct Accuracy {
  double mean = 0;
  double standard_error = 0;  // √(p(1 − p)/(n − 1)); NaN for a single question
};

struct TaskResult {
  int64_t questions = 0;
  int64_t truncated = 0;   // questions cut on the left to fit the model's context
  int64_t not_finite = 0;  // questions with a score that is not finite: counted as wrong
  Accuracy acc;            // highest score wins; of equal ones the first
  Accuracy acc_norm;       // the score divided by the continuation's characters
};

}  // namespace dofla
