#include "dofla/generate/sampler.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "dofla/core/error.h"

namespace dofla {
namespace {

// The first of the largest logits. Checks the whole row on the way.
size_t likeliest(std::span<const float> logits) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  size_t best = 0;
  float top = -kInfinity;
  for (size_t i = 0; i < logits.size(); ++i) {
    if (std::isnan(logits[i]) || logits[i] == kInfinity)
      fail("the model's logit of token {} is {}: its weights or its input are broken", i,
           logits[i]);
    if (logits[i] > top) {
      top = logits[i];
      best = i;
    }
  }
  if (top == -kInfinity) fail("the model gives every token probability 0");
  return best;
}

}  // namespace

Sampler::Sampler(const SamplerOptions& options) : options_(options), random_(options.seed) {
  require(options.temperature >= 0 && std::isfinite(options.temperature),
          "temperature {}: expected 0 or more", options.temperature);
  require(options.top_k >= 0, "top-k {}: expected 0 (all) or more", options.top_k);
  require(options.top_p > 0 && options.top_p <= 1, "top-p {}: expected more than 0, at most 1",
          options.top_p);
}

int64_t Sampler::sample(std::span<const float> logits) {
  const size_t best = likeliest(logits);
  if (options_.temperature == 0) return static_cast<int64_t>(best);

  const double top = logits[best];
  candidates_.resize(logits.size());
  for (size_t i = 0; i < logits.size(); ++i)
    candidates_[i] = {static_cast<int64_t>(i), std::exp((logits[i] - top) / options_.temperature)};
  keep_top_k();
  keep_top_p();

  double total = 0;
  for (const Candidate& candidate : candidates_) total += candidate.weight;
  double left = random_.uniform() * total;
  for (const Candidate& candidate : candidates_) {
    left -= candidate.weight;
    if (left < 0) return candidate.id;
  }
  return static_cast<int64_t>(best);  // rounding left a crumb at the very end
}

void Sampler::keep_top_k() {
  const auto k = static_cast<size_t>(options_.top_k);
  if (k == 0 || k >= candidates_.size()) return;
  const auto likelier = [](const Candidate& a, const Candidate& b) {
    return a.weight != b.weight ? a.weight > b.weight : a.id < b.id;
  };
  std::nth_element(candidates_.begin(), candidates_.begin() + options_.top_k, candidates_.end(),
                   likelier);
  candidates_.resize(k);
  std::sort(candidates_.begin(), candidates_.end(), likelier);
}

// A heap hands out the likeliest tokens one by one: far fewer than all are ever put in order.
void Sampler::keep_top_p() {
  if (options_.top_p == 1) return;
  double wanted = 0;
  for (const Candidate& candidate : candidates_) wanted += candidate.weight;
  wanted *= options_.top_p;
  const auto less_likely = [](const Candidate& a, const Candidate& b) {
    return a.weight != b.weight ? a.weight < b.weight : a.id > b.id;
  };
  std::make_heap(candidates_.begin(), candidates_.end(), less_likely);
  auto rest = candidates_.end();
  double kept = 0;
  do {
    std::pop_heap(candidates_.begin(), rest, less_likely);
    kept += (--rest)->weight;
  } while (kept < wanted && rest != candidates_.begin());
  candidates_.erase(candidates_.begin(), rest);
}

}  // namespace dofla
