// Accuracy on multiple-choice tasks: the candidate with the highest log-likelihood is the model's
// answer.
#pragma once

#include <vector>

#include "dofla/core/progress.h"
#include "dofla/data/tasks/candidate_batch.h"
#include "dofla/data/tasks/task_result.h"
#include "dofla/distributed/group.h"
#include "dofla/model/transformer.h"

namespace dofla {

// The log-likelihood of every candidate's scored tokens, in nats. The model reads twice: first the
// tokens that the candidates have in common, then the rest of all of them as one batch.
std::vector<double> score_candidates(const Transformer& model, const EncodedQuestion& question);

// The same for several questions, which the model reads as one batch: more tokens, at once.
std::vector<std::vector<double>> score_candidates(const Transformer& model, Questions questions);

// The same for any number of questions, in batches that suit the model's device. Ranks share the
// questions, and all have the result.
std::vector<std::vector<double>> score_questions(const Transformer& model,
                                                 const std::vector<EncodedQuestion>& questions,
                                                 const Progress& progress = {},
                                                 const Group& group = {});

// Throws NotFinite (model/finite.h), naming the first layer at fault, if such a score is not
// finite.
void require_finite_scores(const Transformer& model, const EncodedQuestion& question);

// At least one question. All ranks.
TaskResult evaluate_task(const Transformer& model, const std::vector<EncodedQuestion>& questions,
                         const Progress& progress = {}, const Group& group = {});

}  // namespace dofla
