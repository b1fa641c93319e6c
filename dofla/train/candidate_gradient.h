// The loss that fine-tuning minimises, with its gradient: a question asks for the right one of its
// candidates.
#pragma once

#include "dofla/data/tasks/candidate_batch.h"
#include "dofla/model/transformer.h"

namespace dofla {

// The loss of a question is the cross-entropy −log softmax(scores)[gold] over its candidates'
// scores, their summed log-likelihoods as evaluation has them, in nats. All candidates are read as
// one batch. Returns the sum over the questions and adds the gradients of `share` times it to
// `gradients`. A score that is not finite makes both not finite.
double candidate_gradient(const Transformer& model, Questions questions, double share,
                          bool recompute, Gradients& gradients);

}  // namespace dofla
