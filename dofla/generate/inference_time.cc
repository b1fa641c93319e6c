#include "dofla/generate/inference_time.h"

#include <algorithm>

#include "dofla/core/error.h"
#include "dofla/generate/generate.h"

namespace dofla {

void TokenTime::keep_faster(const TokenTime& other) {
  prefill = std::min(prefill, other.prefill);
  decode = std::min(decode, other.decode);
}

TokenTime time_inference(const Transformer& model, const WindowSet& text, int64_t length) {
  constexpr int64_t kDecoded = 32;
  require(!text.empty() && length >= 2, "time inference: {} tokens of {} sequences", length,
          text.size());
  const int64_t decoded = std::min(kDecoded, length / 2);
  TokenIds prompt;
  for (size_t i = 0; static_cast<int64_t>(prompt.size()) < length - decoded; ++i) {
    const TokenIds window = text[i % text.size()];
    prompt.insert(prompt.end(), window.begin(), window.end());
  }
  prompt.resize(static_cast<size_t>(length - decoded));
  const Generation made = generate(
      model, prompt, {.max_tokens = decoded + 1, .stop_at_end_of_text = false, .sampler = {}});
  return {.prefill = made.prompt_seconds / static_cast<double>(prompt.size()),
          .decode = 1 / made.tokens_per_second};
}

}  // namespace dofla
