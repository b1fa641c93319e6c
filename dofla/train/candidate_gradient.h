// The loss that fine-tuning minimises, with its gradient: a question asks for the right one of its
// candidates.
#pragma once

#include <span>

#include "dofla/data/tasks/candidate.h"
#include "dofla/model/transformer.h"

namespace dofla {

// The loss of a question is the cross-entropy −log softmax(scores)[gold] over its candidates'
// scores, their summed log-likelihoods as evaluation has them, in nats. Returns the sum over the
// questions and adds the gradients of `share` times it to `gradients`. A score that is not finite
// makes both not finite.
//
// All candidates are read as one batch. Where one reads no more than the beginning of what another
// one of its question reads (answers of one token), both share that row.
double candidate_gradient(const Transformer& model,
                          std::span<const EncodedQuestion* const> questions, double share,
                          bool recompute, Gradients& gradients);

// Rows times tokens of that batch: what its memory is proportional to.
int64_t batch_tokens(std::span<const EncodedQuestion* const> questions);

}  // namespace dofla
