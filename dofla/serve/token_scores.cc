#include "dofla/serve/token_scores.h"

#include <algorithm>
#include <cmath>

#include "dofla/ops/sampling.h"

namespace dofla {

ServedToken score_token(int64_t id, std::span<const float> logits, int64_t top) {
  const double total = log_sum_exp(logits);
  if (!std::isfinite(total)) likeliest_token(logits);  // throws, and says why
  const auto logprob = [&](int64_t token) {
    return static_cast<float>(double{logits[static_cast<size_t>(token)]} - total);
  };
  ServedToken scored = {.id = id, .logprob = logprob(id), .top = {}};
  // A heap of the likeliest so far, the least likely of them in front.
  const auto likelier = [&](int64_t a, int64_t b) {
    const float x = logits[static_cast<size_t>(a)], y = logits[static_cast<size_t>(b)];
    return x != y ? x > y : a < b;
  };
  std::vector<int64_t> best;
  for (int64_t token = 0; top > 0 && token < std::ssize(logits); ++token) {
    const bool full = std::ssize(best) == top;
    if (full && !likelier(token, best.front())) continue;
    if (full) {
      std::ranges::pop_heap(best, likelier);
      best.pop_back();
    }
    best.push_back(token);
    std::ranges::push_heap(best, likelier);
  }
  std::ranges::sort_heap(best, likelier);
  for (const int64_t token : best) scored.top.push_back({token, logprob(token)});
  return scored;
}

}  // namespace dofla
