// Accuracy on multiple-choice tasks: the candidate with the highest log-likelihood is the model's
// answer.
#pragma once

#include <vector>

#include "dofla/core/progress.h"
#include "dofla/data/tasks/candidate.h"
#include "dofla/model/transformer.h"

namespace dofla {

// The log-likelihood of every candidate's scored tokens, in nats. The model reads twice: first the
// tokens that the candidates have in common, then the rest of all of them as one batch.
std::vector<double> score_candidates(const Transformer& model, const EncodedQuestion& question);

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

// At least one question.
TaskResult evaluate_task(const Transformer& model, const std::vector<EncodedQuestion>& questions,
                         const Progress& progress = {});

}  // namespace dofla
