#include "dofla/serve/answer_json.h"

#include <cmath>

namespace dofla {
namespace {

// A token that cannot come has no finite logarithm, and JSON no infinity.
double finite(float logprob) {
  constexpr double kNever = -9999;
  return std::isfinite(logprob) ? static_cast<double>(logprob) : kNever;
}

OrderedJson chat_token(int64_t id, float logprob, const TokenTexts& texts) {
  const std::string& text = texts.text(id);
  OrderedJson bytes = OrderedJson::array();
  for (const char byte : text) bytes.push_back(static_cast<uint8_t>(byte));
  return {{"token", text}, {"logprob", finite(logprob)}, {"bytes", bytes}};
}

}  // namespace

OrderedJson completion_logprobs(const std::vector<AnsweredToken>& tokens, const TokenTexts& texts) {
  OrderedJson out = {{"tokens", OrderedJson::array()},
                     {"token_logprobs", OrderedJson::array()},
                     {"top_logprobs", OrderedJson::array()},
                     {"text_offset", OrderedJson::array()}};
  for (const auto& [token, offset] : tokens) {
    out["tokens"].push_back(texts.text(token.id));
    out["text_offset"].push_back(offset);
    if (!token.logprob) {
      out["token_logprobs"].push_back(nullptr);
      out["top_logprobs"].push_back(nullptr);
      continue;
    }
    out["token_logprobs"].push_back(finite(*token.logprob));
    OrderedJson top = OrderedJson::object();
    for (const TokenProbability& one : token.top)
      top.emplace(texts.text(one.id), finite(one.logprob));  // the likelier of two that read alike
    out["top_logprobs"].push_back(top);
  }
  return out;
}

OrderedJson chat_logprobs(const std::vector<AnsweredToken>& tokens, const TokenTexts& texts) {
  OrderedJson content = OrderedJson::array();
  for (const auto& [token, offset] : tokens) {
    OrderedJson one = chat_token(token.id, token.logprob.value_or(0), texts);
    one["top_logprobs"] = OrderedJson::array();
    for (const TokenProbability& other : token.top)
      one["top_logprobs"].push_back(chat_token(other.id, other.logprob, texts));
    content.push_back(std::move(one));
  }
  return {{"content", content}};
}

OrderedJson usage_json(int64_t prompt_tokens, int64_t completion_tokens, int64_t cached_tokens) {
  return {{"prompt_tokens", prompt_tokens},
          {"completion_tokens", completion_tokens},
          {"total_tokens", prompt_tokens + completion_tokens},
          {"prompt_tokens_details", {{"cached_tokens", cached_tokens}}}};
}

std::string to_text(const OrderedJson& json) {
  return json.dump(-1, ' ', false, OrderedJson::error_handler_t::replace);
}

std::string to_event(const OrderedJson& json) {
  return "data: " + to_text(json) + "\n\n";
}

}  // namespace dofla
