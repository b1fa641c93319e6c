// Picks the next token from a row of logits.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "dofla/core/random.h"

namespace dofla {

// Applied in this order: temperature, then the top-k, then the top-p tokens of what is left.
struct SamplerOptions {
  double temperature = 0.8;  // divides the logits; 0: always the likeliest token
  int64_t top_k = 0;         // only the k likeliest tokens; 0: all
  double top_p = 0.95;       // only the fewest likeliest tokens that hold this much probability
  uint64_t seed = 0;
};

class Sampler {
 public:
  // Throws std::invalid_argument unless temperature ≥ 0, top_k ≥ 0 and 0 < top_p ≤ 1.
  explicit Sampler(const SamplerOptions& options);

  // The id drawn. Among equal logits the lower id counts as likelier. −∞ is a token that is never
  // drawn; throws Error if no logit is finite or if one is NaN or +∞.
  int64_t sample(std::span<const float> logits);

 private:
  struct Candidate {
    int64_t id;
    double weight;  // its probability, up to a common factor
  };

  void keep_top_k();
  void keep_top_p();

  SamplerOptions options_;
  Random random_;
  std::vector<Candidate> candidates_;
};

}  // namespace dofla
