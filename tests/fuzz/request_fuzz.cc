// A body of arbitrary bytes is either refused with an ApiError, whose JSON can be written, or gives
// a request within the limits.
#include <cmath>
#include <string_view>

#include "dofla/serve/api_request.h"

namespace {

void expect(bool condition) {
  if (!condition) __builtin_trap();
}

const dofla::RequestLimits kLimits;

void check(const dofla::AnswerOptions& options) {
  expect(!options.max_tokens ||
         (*options.max_tokens >= 0 && *options.max_tokens <= kLimits.max_tokens));
  expect(options.sampler.temperature >= 0 && std::isfinite(options.sampler.temperature));
  expect(options.sampler.top_p > 0 && options.sampler.top_p <= 1 && options.sampler.top_k >= 0);
  expect(options.n >= 1 && options.n <= kLimits.choices);
  expect(std::ssize(options.stop) <= kLimits.stops);
  for (const std::string& stop : options.stop)
    expect(!stop.empty() && std::ssize(stop) <= kLimits.stop_bytes);
  expect(!options.top_logprobs ||
         (*options.top_logprobs >= 0 && *options.top_logprobs <= kLimits.top_logprobs));
}

template <class Parse>
void try_to(const Parse& parse) {
  try {
    parse();
  } catch (const dofla::ApiError& error) {
    expect(error.status() == 400);
    expect(!error.json().dump().empty());
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  try_to([&] {
    const dofla::Json body = dofla::parse_body(text);
    try_to([&] {
      const auto request = dofla::parse_completion_request(body, kLimits);
      check(request.options);
      expect(!request.prompts.empty());
      expect(std::ssize(request.prompts) * request.options.n <= kLimits.choices);
    });
    try_to([&] {
      const auto request = dofla::parse_chat_request(body, kLimits);
      check(request.options);
      expect(!request.messages.empty());
      for (const dofla::ChatMessage& message : request.messages)
        expect(message.role == "system" || message.role == "user" || message.role == "assistant");
    });
  });
  return 0;
}
