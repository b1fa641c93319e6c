// Questions as token sequences with the positions that count: what evaluation scores and what
// fine-tuning trains on.
#pragma once

#include "dofla/checkpoint/hf_config.h"
#include "dofla/checkpoint/tokenizer.h"
#include "dofla/data/batches.h"
#include "dofla/data/tasks/task.h"
#include "dofla/data/tokenize.h"
#include "dofla/distributed/group.h"

namespace dofla {

// The score of a candidate is Σ log p(ids[i] | ids[0, i)) over i ≥ scored_from.
struct Candidate {
  TokenIds ids;             // context, then continuation; at most the model's context + 1, as the
                            // last token is predicted but never read
  int64_t scored_from = 1;  // 1 ≤ scored_from < ids.size()
  int64_t characters = 1;   // Unicode characters of the continuation, for length-normalised scores
};

struct EncodedQuestion {
  std::vector<Candidate> candidates;
  int64_t gold = 0;
  bool truncated = false;  // some candidate lost tokens on its left
};

// Encodes as lm-evaluation-harness does. Spaces at the context's end move to the continuation; the
// whole is encoded, without special tokens, and split after as many tokens as the context alone
// has. A context of no tokens is replaced by the token that begins a text, or else the one that
// ends it; Error if the model has neither. What is longer than the model's context is cut on the
// left. Throws Error on an id outside the model's vocabulary.
EncodedQuestion encode_question(const Question& question, const Encode& encode,
                                const ModelConfig& config);
std::vector<EncodedQuestion> encode_questions(const std::vector<Question>& questions,
                                              const Encode& encode, const ModelConfig& config);
std::vector<EncodedQuestion> encode_questions(const std::vector<Question>& questions,
                                              const Tokenizer& tokenizer,
                                              const ModelConfig& config);

// All ranks: throws Error on all of them if one has other questions.
void require_same_questions(const Group& group, const std::vector<EncodedQuestion>& questions);

// The tokens that all candidates begin with and none is scored on: where they can share work.
int64_t shared_tokens(const EncodedQuestion& question);

}  // namespace dofla
