// Bodies of /v1/completions and /v1/chat/completions: what strangers send becomes plain structs, or
// an ApiError that names the field. What would change the answer and is not supported is refused by
// name; what changes nothing is ignored.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "dofla/generate/sampler.h"
#include "dofla/serve/api_error.h"
#include "dofla/serve/chat_template.h"

namespace dofla {

struct RequestLimits {
  int64_t max_tokens = 4096;  // of an answer
  int64_t choices = 256;      // answers of a request: prompts × n
  int64_t stops = 16;
  int64_t stop_bytes = 256;
  int64_t top_logprobs = 20;
};

using Prompt = std::variant<std::string, std::vector<int64_t>>;  // text or ids

// What both kinds of request have in common.
struct AnswerOptions {
  std::string model;                  // empty: the first one served
  std::optional<int64_t> max_tokens;  // 0: only the prompt is read
  SamplerOptions sampler;             // of the first answer; the next one has the next seed
  int64_t n = 1;
  std::vector<std::string> stop;
  std::optional<int64_t> top_logprobs;  // so many alternatives; empty: no log-probabilities
  bool stream = false;
  bool include_usage = false;     // in the stream's last event
  bool continuous_usage = false;  // in every event
  bool ignore_end = false;        // go on after the end-of-text token
  std::string from_state, keep_state;
};

struct CompletionRequest {
  AnswerOptions options;
  std::vector<Prompt> prompts;
  bool echo = false;  // the prompt is part of the answer
};

struct ChatRequest {
  AnswerOptions options;
  std::vector<ChatMessage> messages;
};

// A body as JSON, which must be an object.
Json parse_body(std::string_view body);

CompletionRequest parse_completion_request(const Json& body, const RequestLimits& limits);
ChatRequest parse_chat_request(const Json& body, const RequestLimits& limits);

std::vector<ChatMessage> parse_messages(const Json& body);

// Fields of other bodies. Throw ApiError if a field is there with another type; null counts as
// absent.
std::optional<std::string> text_field(const Json& body, const std::string& name);
bool flag_field(const Json& body, const std::string& name, bool absent);
std::vector<int64_t> ids_field(const Json& value, const std::string& name);

}  // namespace dofla
