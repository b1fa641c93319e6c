// Whether a model says the last word of a text, all of its tokens, and how likely it holds it.
#pragma once

#include <vector>

#include "dofla/core/progress.h"
#include "dofla/data/tasks/candidate.h"
#include "dofla/data/tasks/task_result.h"
#include "dofla/distributed/group.h"
#include "dofla/model/transformer.h"

namespace dofla {

struct LastWords {
  int64_t words = 0;
  int64_t truncated = 0;  // texts cut on the left to fit the model's context
  Accuracy acc = {};  // every token of the word is the likeliest one, as greedy generation draws
  double loss = 0;    // mean over the words of −log p(word), in nats
  double perplexity = 1;  // exp(loss): a word's, not a token's
};

// Questions of one candidate, which are read many at a time. Throws NotFinite (model/finite.h) if a
// loss is not finite. All ranks.
LastWords evaluate_last_words(const Transformer& model, const std::vector<EncodedQuestion>& texts,
                              const Progress& progress = {}, const Group& group = {});

}  // namespace dofla
