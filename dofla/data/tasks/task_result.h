// How well a model does on a multiple-choice task.
#pragma once

#include <cstdint>
#include <vector>

namespace dofla {

struct Accuracy {
  double mean = 0;
  double standard_error = 0;  // √(p(1 − p)/(n − 1)) of right and wrong; NaN for a single question
};

// Of what every question got: 1 if it was answered right, 0 if not, or a share between.
Accuracy accuracy(const std::vector<double>& right);

struct TaskResult {
  int64_t questions = 0;
  int64_t truncated = 0;   // questions cut on the left to fit the model's context
  int64_t not_finite = 0;  // questions with a score that is not finite: counted as wrong
  Accuracy acc = {};       // highest score wins; of equal ones the first
  Accuracy acc_norm = {};  // the score divided by the continuation's characters
};

}  // namespace dofla
