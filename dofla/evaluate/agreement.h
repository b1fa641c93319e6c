// How long a student writes what its teacher writes: greedy continuations of the same prompts,
// until the first token that differs.
#pragma once

#include <vector>

#include "dofla/data/batches.h"
#include "dofla/model/transformer.h"

namespace dofla {

struct Agreement {
  int64_t prompts = 0;
  int64_t tokens = 0;  // of every continuation
  // Over prompts, of the tokens before the first difference; `tokens` where there is none.
  double median = 0;
  double mean = 0;
  double equal = 0;  // share of the prompts without a difference
};

// Stretches of `tokens` tokens of a text, one after another. Throws Error if it is too short for so
// many.
std::vector<TokenIds> prompts_from(const TokenIds& text, int64_t prompts, int64_t tokens);

// Of continuations by generate_greedily (generate/generate.h), prompt by prompt. All are of one
// length, 1 or more.
Agreement agreement(const std::vector<TokenIds>& teacher, const std::vector<TokenIds>& student);

}  // namespace dofla
