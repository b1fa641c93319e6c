#include "dofla/serve/api_request.h"

#include <cmath>
#include <random>

#include "dofla/core/error.h"

namespace dofla {
namespace {

// The field, or nothing if it is absent or null.
const Json* find(const Json& body, const std::string& name) {
  const auto at = body.find(name);
  return at == body.end() || at->is_null() ? nullptr : &*at;
}

std::optional<int64_t> whole_field(const Json& body, const std::string& name, int64_t low,
                                   int64_t high) {
  const Json* value = find(body, name);
  if (value == nullptr) return std::nullopt;
  const bool fits = value->is_number_integer() &&
                    (!value->is_number_unsigned() || value->get<uint64_t>() <= uint64_t(INT64_MAX));
  if (!fits || value->get<int64_t>() < low || value->get<int64_t>() > high)
    refuse(name, "expected a whole number from {} to {}, found {}", low, high, excerpt(*value));
  return value->get<int64_t>();
}

std::optional<double> real_field(const Json& body, const std::string& name, double low,
                                 double high) {
  const Json* value = find(body, name);
  if (value == nullptr) return std::nullopt;
  const double number = value->is_number() ? value->get<double>() : NAN;
  if (!(number >= low && number <= high))
    refuse(name, "expected a number from {} to {}, found {}", low, high, excerpt(*value));
  return number;
}

uint64_t seed_of(const Json& body) {
  const Json* value = find(body, "seed");
  if (value == nullptr) return std::random_device()();
  if (!value->is_number_unsigned())
    refuse("seed", "expected a whole number from 0 up, found {}", excerpt(*value));
  return value->get<uint64_t>();
}

// A parameter that would change the answer if it were obeyed; `harmless` is the value that is not.
struct Unsupported {
  const char* name;
  Json harmless;
};

bool is_empty(const Json& value) {
  return (value.is_array() || value.is_object() || value.is_string()) && value.empty();
}

void refuse_unsupported(const Json& body) {
  static const std::vector<Unsupported> unsupported = {
      {"tools", nullptr},
      {"functions", nullptr},
      {"logit_bias", nullptr},
      {"response_format", {{"type", "text"}}},
      {"presence_penalty", 0},
      {"frequency_penalty", 0},
      {"repetition_penalty", 1},
      {"repeat_penalty", 1},
      {"best_of", 1},
      {"suffix", nullptr},
      {"min_p", 0},
      {"typical_p", 1},
      {"min_tokens", 0},
      {"stop_token_ids", nullptr},
      {"bad_words", nullptr},
      {"allowed_token_ids", nullptr},
      {"prompt_logprobs", nullptr},
      {"grammar", nullptr},
      {"json_schema", nullptr},
      {"guided_json", nullptr},
      {"guided_regex", nullptr},
      {"guided_choice", nullptr},
      {"guided_grammar", nullptr},
      {"structured_outputs", nullptr},
      {"use_beam_search", false},
      {"audio", nullptr},
      {"modalities", Json::array({"text"})},
      {"web_search_options", nullptr},
  };
  for (const auto& [name, harmless] : unsupported) {
    const Json* value = find(body, name);
    if (value == nullptr || *value == harmless || is_empty(*value)) continue;
    throw ApiError(400, fmt::format("{} is not supported by dofla serve: leave it out", name), name,
                   "unsupported_parameter");
  }
}

std::vector<std::string> stop_field(const Json& body, const RequestLimits& limits) {
  const Json* value = find(body, "stop");
  if (value == nullptr) return {};
  const Json list = value->is_array() ? *value : Json::array({*value});
  if (list.size() > static_cast<size_t>(limits.stops))
    refuse("stop", "expected at most {} strings, found {}", limits.stops, list.size());
  std::vector<std::string> out;
  for (const Json& one : list) {
    if (!one.is_string()) refuse("stop", "expected strings, found {}", excerpt(one));
    out.push_back(one.get<std::string>());
    if (out.back().empty() || std::ssize(out.back()) > limits.stop_bytes)
      refuse("stop", "expected strings of 1 to {} bytes, found {}", limits.stop_bytes,
             out.back().size());
  }
  return out;
}

AnswerOptions parse_options(const Json& body, const RequestLimits& limits) {
  refuse_unsupported(body);
  AnswerOptions out;
  out.model = text_field(body, "model").value_or("");
  for (const char* name : {"max_tokens", "max_completion_tokens"})
    if (const auto most = whole_field(body, name, 0, limits.max_tokens)) out.max_tokens = most;
  out.sampler.temperature = real_field(body, "temperature", 0, 100).value_or(1);
  out.sampler.top_p = real_field(body, "top_p", 0, 1).value_or(1);
  if (out.sampler.top_p == 0) refuse("top_p", "expected more than 0");
  // −1 is what others call all tokens.
  out.sampler.top_k = std::max<int64_t>(0, whole_field(body, "top_k", -1, INT32_MAX).value_or(0));
  out.sampler.seed = seed_of(body);
  out.n = whole_field(body, "n", 1, limits.choices).value_or(1);
  out.stop = stop_field(body, limits);
  out.stream = flag_field(body, "stream", false);
  if (const Json* options = find(body, "stream_options")) {
    if (!options->is_object())
      refuse("stream_options", "expected an object, found {}", excerpt(*options));
    out.include_usage = flag_field(*options, "include_usage", false);
    out.continuous_usage = flag_field(*options, "continuous_usage_stats", false);
  }
  out.ignore_end = flag_field(body, "ignore_eos", false);
  out.from_state = text_field(body, "from_state").value_or("");
  out.keep_state = text_field(body, "keep_state").value_or("");
  if (!out.keep_state.empty() && out.n > 1)
    refuse("keep_state", "one name takes one answer's state, and n is {}", out.n);
  return out;
}

Prompt parse_prompt(const Json& value) {
  if (value.is_string()) return value.get<std::string>();
  if (value.is_array()) return ids_field(value, "prompt");
  refuse("prompt", "expected text or token ids, found {}", excerpt(value));
}

std::vector<Prompt> parse_prompts(const Json& body) {
  const Json* value = find(body, "prompt");
  if (value == nullptr) return {std::string()};
  const bool one =
      value->is_string() || (value->is_array() && !value->empty() && value->front().is_number());
  if (one) return {parse_prompt(*value)};
  if (!value->is_array() || value->empty())
    refuse("prompt", "expected text, token ids, or a list of either, found {}", excerpt(*value));
  std::vector<Prompt> out;
  out.reserve(value->size());
  for (const Json& prompt : *value) out.push_back(parse_prompt(prompt));
  return out;
}

// Text, or a list of parts that are all text.
std::string content_of(const Json& message) {
  const Json* content = find(message, "content");
  if (content == nullptr) refuse("messages", "a message has no content");
  if (content->is_string()) return content->get<std::string>();
  if (!content->is_array())
    refuse("messages", "content: expected text, found {}", excerpt(*content));
  std::string out;
  for (const Json& part : *content) {
    const bool is_text = part.is_object() && text_field(part, "type") == "text";
    if (!is_text)
      refuse("messages", "content: expected parts of type text, found {}", excerpt(part));
    out += text_field(part, "text").value_or("");
  }
  return out;
}

ChatMessage parse_message(const Json& message) {
  if (!message.is_object()) refuse("messages", "expected objects, found {}", excerpt(message));
  for (const char* name : {"tool_calls", "function_call", "audio"})
    if (const Json* value = find(message, name); value != nullptr && !is_empty(*value))
      refuse("messages", "{} is not supported by dofla serve", name);
  std::string role = text_field(message, "role").value_or("");
  if (role == "developer") role = "system";
  if (role != "system" && role != "user" && role != "assistant")
    refuse("messages", "role: expected system, developer, user or assistant, found \"{}\"",
           printable(role));
  return {role, content_of(message)};
}

}  // namespace

Json parse_body(std::string_view body) {
  Json json;
  try {
    json = parse_json(body, "body");
  } catch (const Error& error) {
    throw ApiError(400, error.what(), {}, "invalid_json");
  }
  if (!json.is_object())
    throw ApiError(400, fmt::format("body: expected a JSON object, found {}", excerpt(json)), {},
                   "invalid_json");
  return json;
}

std::optional<std::string> text_field(const Json& body, const std::string& name) {
  const Json* value = find(body, name);
  if (value == nullptr) return std::nullopt;
  if (!value->is_string()) refuse(name, "expected text, found {}", excerpt(*value));
  return value->get<std::string>();
}

bool flag_field(const Json& body, const std::string& name, bool absent) {
  const Json* value = find(body, name);
  if (value == nullptr) return absent;
  if (!value->is_boolean()) refuse(name, "expected true or false, found {}", excerpt(*value));
  return value->get<bool>();
}

std::vector<int64_t> ids_field(const Json& value, const std::string& name) {
  if (!value.is_array()) refuse(name, "expected token ids, found {}", excerpt(value));
  std::vector<int64_t> ids;
  ids.reserve(value.size());
  for (const Json& id : value) {
    if (!id.is_number_unsigned() || id.get<uint64_t>() > uint64_t(INT32_MAX))
      refuse(name, "expected token ids, found {}", excerpt(id));
    ids.push_back(id.get<int64_t>());
  }
  return ids;
}

CompletionRequest parse_completion_request(const Json& body, const RequestLimits& limits) {
  CompletionRequest out;
  out.options = parse_options(body, limits);
  out.options.top_logprobs = whole_field(body, "logprobs", 0, limits.top_logprobs);
  out.echo = flag_field(body, "echo", false);
  out.prompts = parse_prompts(body);
  const auto prompts = std::ssize(out.prompts);
  if (prompts * out.options.n > limits.choices)
    refuse("prompt", "{} prompts × n = {} are more than {} answers at once", prompts, out.options.n,
           limits.choices);
  if (prompts > 1 && !out.options.keep_state.empty())
    refuse("keep_state", "one name takes one answer's state, and there are {} prompts", prompts);
  return out;
}

ChatRequest parse_chat_request(const Json& body, const RequestLimits& limits) {
  ChatRequest out;
  out.options = parse_options(body, limits);
  const bool wanted = flag_field(body, "logprobs", false);
  const auto top = whole_field(body, "top_logprobs", 0, limits.top_logprobs);
  if (top && !wanted) refuse("top_logprobs", "goes with logprobs: true");
  if (wanted) out.options.top_logprobs = top.value_or(0);
  out.messages = parse_messages(body);
  return out;
}

std::vector<ChatMessage> parse_messages(const Json& body) {
  const Json* messages = find(body, "messages");
  if (messages == nullptr || !messages->is_array() || messages->empty())
    refuse("messages", "expected a list of messages");
  std::vector<ChatMessage> out;
  for (const Json& message : *messages) out.push_back(parse_message(message));
  return out;
}

}  // namespace dofla
