// Picks the next token from a row of logits.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "dofla/core/random.h"
#include "dofla/ops/sampling.h"

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
  // For a draw elsewhere (draw_tokens), with the random number that sample() would take next.
  TokenDraw next_draw();

 private:
  struct Candidate {
    int64_t id;
    float weight;  // its probability, up to a common factor
  };
  static bool likelier(const Candidate& a, const Candidate& b) {
    return a.weight != b.weight ? a.weight > b.weight : a.id < b.id;
  }

  // Makes the likely tokens candidates, from weight `least` on all of them; fewer where these are
  // enough(sum of their weights). Returns that sum, as the others do for what they keep.
  template <class Enough>
  double gather(double least, const Enough& enough);
  double keep_top_k();
  double keep_top_p(double total);  // of what was there before, candidates or not
  int64_t draw_from_all(double total, size_t best);
  int64_t draw(double total);  // of the candidates

  SamplerOptions options_;
  Random random_;
  std::vector<float> weights_;  // of all tokens
  std::vector<Candidate> candidates_;
};

}  // namespace dofla
