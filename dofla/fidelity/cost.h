// What a model costs beside what it is worth: memory of a sequence, and speed.
#pragma once

#include <array>
#include <vector>

#include "dofla/features/feature_set.h"
#include "dofla/generate/inference_time.h"

namespace dofla {

inline constexpr std::array<int64_t, 3> kCostLengths = {1'000, 32'000, 1'000'000};  // tokens

struct Cost {
  std::array<int64_t, kCostLengths.size()> bytes = {};  // of a sequence of so many tokens
  int64_t context_bytes = 0;                            // of one as long as the model's context
  bool grows = false;                                   // with the sequence
  int64_t timed_tokens = 0;                             // of the sequence that these are of
  double prefill = 0;                                   // tokens a second
  double decode = 0;
};

// `features` are the model's, without a layer for a softmax model. The fastest of some rounds over
// a sequence of `length` tokens counts, after one that does not.
Cost measure_cost(const Transformer& model, const FeatureSet& features,
                  const std::vector<TokenIds>& text, int64_t length, int rounds);

// The tokens from which on a growing cache takes more than `bytes`.
int64_t tokens_in(const ModelConfig& teacher, int64_t bytes);

}  // namespace dofla
