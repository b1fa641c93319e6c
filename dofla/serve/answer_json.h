// Answers in the words of OpenAI's API.
#pragma once

#include <string>
#include <vector>

#include "dofla/core/json.h"
#include "dofla/serve/request.h"
#include "dofla/serve/token_texts.h"

namespace dofla {

// A token of an answer, with the character of the answer's text at which it begins.
struct AnsweredToken {
  ServedToken token;
  int64_t offset = 0;
};

// "logprobs" of a completion: tokens, token_logprobs, top_logprobs, text_offset.
OrderedJson completion_logprobs(const std::vector<AnsweredToken>& tokens, const TokenTexts& texts);

// "logprobs" of a chat answer: content, an object a token.
OrderedJson chat_logprobs(const std::vector<AnsweredToken>& tokens, const TokenTexts& texts);

OrderedJson usage_json(int64_t prompt_tokens, int64_t completion_tokens, int64_t cached_tokens);

std::string to_text(const OrderedJson& json);   // compact; bytes that are not UTF-8 as U+FFFD
std::string to_event(const OrderedJson& json);  // of a stream: "data: …"

}  // namespace dofla
