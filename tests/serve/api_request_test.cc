#include "dofla/serve/api_request.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace dofla {
namespace {

CompletionRequest completion(const char* body) {
  return parse_completion_request(parse_body(body), {});
}

ChatRequest chat(const char* body) {
  return parse_chat_request(parse_body(body), {});
}

// The request is refused with 400, names the field, and says `part`.
template <class Parse>
void expect_refusal(const Parse& parse, const char* body, const char* param,
                    const char* part = "") {
  try {
    parse(body);
    ADD_FAILURE() << body << " was taken";
  } catch (const ApiError& error) {
    EXPECT_EQ(error.status(), 400) << body;
    EXPECT_THAT(error.what(), testing::HasSubstr(part)) << body;
    const Json json = error.json().at("error");
    EXPECT_EQ(json.at("param"), param == nullptr ? Json() : Json(param)) << body;
    EXPECT_EQ(json.at("type"), "invalid_request_error") << body;
  }
}

TEST(ApiRequest, DefaultsAreThoseOfOpenAi) {
  const CompletionRequest request = completion(R"({"prompt": "a"})");
  EXPECT_EQ(request.options.sampler.temperature, 1);
  EXPECT_EQ(request.options.sampler.top_p, 1);
  EXPECT_EQ(request.options.sampler.top_k, 0);
  EXPECT_EQ(request.options.n, 1);
  EXPECT_FALSE(request.options.max_tokens.has_value());
  EXPECT_FALSE(request.options.top_logprobs.has_value());
  EXPECT_FALSE(request.options.stream || request.echo || request.options.ignore_end);
}

TEST(ApiRequest, EveryFieldArrives) {
  const CompletionRequest request = completion(
      R"({"model": "m", "prompt": "a", "max_tokens": 0, "temperature": 0.5, "top_p": 0.25,
          "top_k": 7, "seed": 18446744073709551615, "n": 3, "stop": ["x", "yz"], "logprobs": 2,
          "echo": true, "stream": true, "stream_options": {"include_usage": true},
          "ignore_eos": true, "user": "somebody", "from_state": "s"})");
  const AnswerOptions& options = request.options;
  EXPECT_EQ(options.model, "m");
  EXPECT_EQ(options.max_tokens, 0);
  EXPECT_EQ(options.sampler.temperature, 0.5);
  EXPECT_EQ(options.sampler.top_p, 0.25);
  EXPECT_EQ(options.sampler.top_k, 7);
  EXPECT_EQ(options.sampler.seed, UINT64_MAX);
  EXPECT_EQ(options.n, 3);
  EXPECT_EQ(options.stop, (std::vector<std::string>{"x", "yz"}));
  EXPECT_EQ(options.top_logprobs, 2);
  EXPECT_TRUE(request.echo && options.stream && options.include_usage && options.ignore_end);
  EXPECT_EQ(options.from_state, "s");
}

TEST(ApiRequest, PromptsAreTextIdsOrListsOfBoth) {
  using Ids = std::vector<int64_t>;
  EXPECT_EQ(completion(R"({"prompt": "a"})").prompts, (std::vector<Prompt>{std::string("a")}));
  EXPECT_EQ(completion(R"({"prompt": [1, 2]})").prompts, (std::vector<Prompt>{Ids{1, 2}}));
  EXPECT_EQ(completion(R"({"prompt": ["a", "b"]})").prompts,
            (std::vector<Prompt>{std::string("a"), std::string("b")}));
  EXPECT_EQ(completion(R"({"prompt": [[1], "b", [2, 3]]})").prompts,
            (std::vector<Prompt>{Ids{1}, std::string("b"), Ids{2, 3}}));
  EXPECT_EQ(completion("{}").prompts, (std::vector<Prompt>{std::string()}));
}

TEST(ApiRequest, WhatIsNoJsonIsRefused) {
  for (const char* body : {"", "{", "nonsense", "[1]", "3", "\"text\"", "{\"a\": NaN}", "\xFF",
                           "{\"prompt\": \"a\", \"prompt\": \"b\"}"})
    expect_refusal(completion, body, nullptr);
}

TEST(ApiRequest, WrongValuesAreRefusedByName) {
  for (const char* body :
       {R"({"max_tokens": -1})", R"({"max_tokens": 1.5})", R"({"max_tokens": "8"})",
        R"({"max_tokens": 100000})", R"({"max_tokens": 18446744073709551615})"})
    expect_refusal(completion, body, "max_tokens", "whole number from 0 to 4096");
  for (const char* body : {R"({"temperature": -0.1})", R"({"temperature": "hot"})",
                           R"({"temperature": 1e300})", R"({"temperature": true})"})
    expect_refusal(completion, body, "temperature", "number from 0 to 100");
  for (const char* body : {R"({"top_p": 0})", R"({"top_p": 1.01})", R"({"top_p": -1})"})
    expect_refusal(completion, body, "top_p");
  for (const char* body : {R"({"top_k": -2})", R"({"top_k": 0.5})"})
    expect_refusal(completion, body, "top_k");
  for (const char* body : {R"({"seed": -1})", R"({"seed": 1.5})", R"({"seed": "1"})"})
    expect_refusal(completion, body, "seed");
  for (const char* body : {R"({"n": 0})", R"({"n": 1000000})"})
    expect_refusal(completion, body, "n");
  for (const char* body :
       {R"({"stop": 3})", R"({"stop": [""]})", R"({"stop": ["a", 1]})", R"({"stop": {"a": 1}})"})
    expect_refusal(completion, body, "stop");
  for (const char* body : {R"({"logprobs": 21})", R"({"logprobs": -1})", R"({"logprobs": true})"})
    expect_refusal(completion, body, "logprobs");
  expect_refusal(completion, R"({"stream": "yes"})", "stream");
  expect_refusal(completion, R"({"stream_options": 1})", "stream_options");
  expect_refusal(completion, R"({"model": 1})", "model");
  for (const char* body :
       {R"({"prompt": []})", R"({"prompt": 1})", R"({"prompt": {"a": 1}})",
        R"({"prompt": [1, -2]})", R"({"prompt": [1, 2.5]})", R"({"prompt": [99999999999]})",
        R"({"prompt": [[1], 2]})", R"({"prompt": [1, "a"]})", R"({"prompt": [true]})"})
    expect_refusal(completion, body, "prompt");
  expect_refusal(completion, R"({"prompt": ["a", "b"], "n": 200})", "prompt", "256 answers");
  expect_refusal(completion, R"({"prompt": "a", "n": 2, "keep_state": "s"})", "keep_state");
}

TEST(ApiRequest, WhatWouldChangeTheAnswerIsRefusedByName) {
  for (const char* body :
       {R"({"tools": [{}]})", R"({"logit_bias": {"5": 1}})", R"({"presence_penalty": 0.5})",
        R"({"frequency_penalty": -1})", R"({"best_of": 3})", R"({"suffix": "x"})",
        R"({"response_format": {"type": "json_object"}})", R"({"min_p": 0.1})"}) {
    const std::string name = Json::parse(body).begin().key();
    expect_refusal(completion, body, name.c_str(), "not supported");
  }
  // Null, empty and neutral values change nothing.
  completion(R"({"tools": [], "logit_bias": {}, "presence_penalty": 0, "frequency_penalty": 0.0,
                 "best_of": 1, "suffix": null, "response_format": {"type": "text"}})");
}

TEST(ApiRequest, MessagesAreTextFromKnownRoles) {
  const ChatRequest request = chat(R"({"messages": [{"role": "developer", "content": "a"},
      {"role": "user", "content": [{"type": "text", "text": "b"}, {"type": "text", "text": "c"}]},
      {"role": "assistant", "content": "d", "tool_calls": []}], "logprobs": true})");
  ASSERT_EQ(request.messages.size(), 3);
  EXPECT_EQ(request.messages[0].role, "system");
  EXPECT_EQ(request.messages[1].content, "bc");
  EXPECT_EQ(request.options.top_logprobs, 0);
  for (const char* body :
       {"{}", R"({"messages": []})", R"({"messages": "a"})", R"({"messages": ["a"]})",
        R"({"messages": [{"role": "user"}]})",
        R"({"messages": [{"role": "tool", "content": "a"}]})",
        R"({"messages": [{"content": "a"}]})", R"({"messages": [{"role": "user", "content": 1}]})",
        R"({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]})",
        R"({"messages": [{"role": "assistant", "content": "a", "tool_calls": [{}]}]})"})
    expect_refusal(chat, body, "messages");
  expect_refusal(chat, R"({"messages": [{"role": "user", "content": "a"}], "top_logprobs": 2})",
                 "top_logprobs");
  expect_refusal(chat, R"({"messages": [{"role": "user", "content": "a"}], "logprobs": 1})",
                 "logprobs");
}

TEST(ApiRequest, MaxCompletionTokensMeansTheSame) {
  EXPECT_EQ(completion(R"({"max_completion_tokens": 5})").options.max_tokens, 5);
}

}  // namespace
}  // namespace dofla
