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

// How large that batch is for one question. Several together take the sum of their sequences, as
// long as the longest.
struct BatchShape {
  int64_t sequences = 0;
  int64_t tokens = 0;  // of the longest
};
BatchShape batch_shape(const EncodedQuestion& question);

}  // namespace dofla
