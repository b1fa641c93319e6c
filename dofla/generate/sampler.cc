#include "dofla/generate/sampler.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "dofla/core/error.h"

namespace dofla {

Sampler::Sampler(const SamplerOptions& options) : options_(options), random_(options.seed) {
  require(options.temperature >= 0 && std::isfinite(options.temperature),
          "temperature {}: expected 0 or more", options.temperature);
  require(options.top_k >= 0, "top-k {}: expected 0 (all) or more", options.top_k);
  require(options.top_p > 0 && options.top_p <= 1, "top-p {}: expected more than 0, at most 1",
          options.top_p);
}

int64_t Sampler::sample(std::span<const float> logits) {
  const size_t best = likeliest_token(logits);
  if (options_.temperature == 0) return static_cast<int64_t>(best);

  weights_.resize(logits.size());
  double total = sampling_weights(logits, logits[best], options_.temperature, weights_);
  if (options_.top_k > 0 && options_.top_k < std::ssize(logits)) {
    total = keep_top_k();
  } else if (options_.top_p < 1) {
    // All tokens of less weight than that have less than what is left out.
    const double least = (1 - options_.top_p) * total / static_cast<double>(logits.size());
    gather(least, [&](double sum) { return sum >= options_.top_p * total; });
  } else {
    return draw_from_all(total, best);
  }
  return draw(keep_top_p(total));
}

TokenDraw Sampler::next_draw() {
  const bool likeliest = options_.temperature == 0;
  return {options_.temperature, options_.top_k, options_.top_p, likeliest ? 0 : random_.uniform()};
}

// Few tokens are likely: the others are passed over in blocks, and not looked at again unless these
// are not enough.
template <class Enough>
double Sampler::gather(double least, const Enough& enough) {
  constexpr size_t kBlock = 64;
  double sum = 0;
  for (const double from : {1e-2, 1e-4, least}) {
    // What is 0 is never drawn.
    const float bound =
        std::max(static_cast<float>(from), std::numeric_limits<float>::denorm_min());
    candidates_.clear();
    sum = 0;
    for (size_t begin = 0; begin < weights_.size(); begin += kBlock) {
      const size_t end = std::min(begin + kBlock, weights_.size());
      unsigned any = 0;  // without a branch, which vector instructions take many at a time
      for (size_t i = begin; i < end; ++i) any |= weights_[i] >= bound;
      for (size_t i = begin; any != 0 && i < end; ++i)
        if (weights_[i] >= bound) {
          candidates_.push_back({static_cast<int64_t>(i), weights_[i]});
          sum += weights_[i];
        }
    }
    if (enough(sum)) break;
  }
  return sum;
}

double Sampler::keep_top_k() {
  const auto k = static_cast<size_t>(options_.top_k);
  double sum = gather(0, [&](double) { return candidates_.size() >= k; });
  if (k >= candidates_.size()) return sum;
  std::ranges::nth_element(candidates_, candidates_.begin() + options_.top_k, likelier);
  candidates_.resize(k);
  sum = 0;
  for (const Candidate& candidate : candidates_) sum += candidate.weight;
  return sum;
}

// A heap hands out the likeliest tokens one by one: far fewer than all are ever put in order.
double Sampler::keep_top_p(double total) {
  const auto less_likely = [](const Candidate& a, const Candidate& b) { return likelier(b, a); };
  std::ranges::make_heap(candidates_, less_likely);
  auto rest = candidates_.end();
  double kept = 0;
  do {
    std::pop_heap(candidates_.begin(), rest, less_likely);
    kept += (--rest)->weight;
  } while (kept < options_.top_p * total && rest != candidates_.begin());
  candidates_.erase(candidates_.begin(), rest);
  return kept;
}

int64_t Sampler::draw_from_all(double total, size_t best) {
  double left = random_.uniform() * total;
  for (size_t i = 0; i < weights_.size(); ++i)
    if ((left -= weights_[i]) < 0) return static_cast<int64_t>(i);
  return static_cast<int64_t>(best);  // rounding left a crumb at the very end
}

int64_t Sampler::draw(double total) {
  double left = random_.uniform() * total;
  for (const Candidate& candidate : candidates_)
    if ((left -= candidate.weight) < 0) return candidate.id;
  return candidates_.back().id;  // the likeliest
}

}  // namespace dofla
