// The candidates of several questions as one batch that a model reads at once.
#pragma once

#include <span>

#include "dofla/core/tensor.h"
#include "dofla/data/tasks/candidate.h"

namespace dofla {

using Questions = std::span<const EncodedQuestion* const>;

// Where a candidate reads no more than the beginning of what another one of its question reads
// (answers of one token), both share that sequence.
struct CandidateBatch {
  Tensor ids;  // [N, T], I64: sequences, padded to the longest; padding is not scored
  // Of the scored tokens, candidate after candidate, question after question:
  Tensor places;   // [S], I64: which of the N·T places predicts it
  Tensor targets;  // [S], I64
};

CandidateBatch candidate_batch(Questions questions);

// The scores of every question's candidates: minus the sums of their tokens' losses.
std::vector<std::vector<double>> candidate_scores(Questions questions,
                                                  const Tensor& losses);  // [S], F32

// Questions in batches of at most so many tokens, filling included, but at least one question; long
// ones with long ones.
std::vector<std::vector<const EncodedQuestion*>> question_batches(Questions questions,
                                                                  int64_t most_tokens);

}  // namespace dofla
