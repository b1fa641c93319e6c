// What an Answer sends, once its text is there.
#include <algorithm>

#include "dofla/serve/answer.h"

namespace dofla {

OrderedJson Answer::envelope(const char* suffix) const {
  const std::string object =
      question_.chat ? fmt::format("chat.completion{}", suffix) : std::string("text_completion");
  return {{"id", id_}, {"object", object}, {"created", created_}, {"model", model_->id()}};
}

OrderedJson Answer::logprobs(Choice& choice) const {
  if (!question_.options.top_logprobs) return nullptr;
  const std::vector<AnsweredToken> tokens = std::exchange(choice.tokens, {});
  return question_.chat ? chat_logprobs(tokens, model_->texts())
                        : completion_logprobs(tokens, model_->texts());
}

// Of a choice what has not been sent yet.
OrderedJson Answer::choice_json(size_t index) {
  Choice& choice = *choices_[index];
  OrderedJson out = {{"index", index}};
  std::string text = std::exchange(choice.text, {});
  if (!question_.chat) {
    out["text"] = std::move(text);
  } else if (!question_.options.stream) {
    out["message"] = {{"role", "assistant"}, {"content", std::move(text)}, {"refusal", nullptr}};
  } else {
    OrderedJson delta = OrderedJson::object();
    if (!choice.began) delta["role"] = "assistant";
    if (!choice.began || !text.empty()) delta["content"] = std::move(text);
    out["delta"] = std::move(delta);
  }
  choice.began = true;
  out["logprobs"] = logprobs(choice);
  out["finish_reason"] = nullptr;
  if (!choice.finish_reason.empty()) out["finish_reason"] = choice.finish_reason;
  return out;
}

OrderedJson Answer::usage() const {
  int64_t prompt_tokens = 0, completion_tokens = 0, cached_tokens = 0;
  for (const TokenIds& prompt : question_.prompts) prompt_tokens += std::ssize(prompt);
  for (const auto& choice : choices_) {
    completion_tokens += choice->completion_tokens;
    cached_tokens += choice->usage.cached_tokens;
  }
  return usage_json(prompt_tokens, completion_tokens, cached_tokens);
}

void Answer::send_events() {
  std::string events;
  for (size_t i = 0; i < choices_.size(); ++i) {
    Choice& choice = *choices_[i];
    const bool news =
        !choice.text.empty() || !choice.tokens.empty() || !choice.finish_reason.empty();
    if (choice.sent || !news) continue;
    OrderedJson event = envelope(".chunk");
    event["choices"] = OrderedJson::array({choice_json(i)});
    if (question_.options.continuous_usage) event["usage"] = usage();
    events += to_event(event);
    choice.sent = !choice.finish_reason.empty();
  }
  if (std::ranges::all_of(choices_, [](const auto& choice) { return choice->sent; })) {
    if (question_.options.include_usage) {
      OrderedJson event = envelope(".chunk");
      event["choices"] = OrderedJson::array();
      event["usage"] = usage();
      events += to_event(event);
    }
    events += "data: [DONE]\n\n";
  }
  reply_.write(std::move(events));
}

void Answer::finish_if_done() {
  const auto going_on = [](const auto& choice) { return choice->finish_reason.empty(); };
  if (std::ranges::any_of(choices_, going_on)) return;
  done_ = true;
  if (question_.options.stream) return reply_.end();
  OrderedJson answer = envelope("");
  answer["choices"] = OrderedJson::array();
  for (size_t i = 0; i < choices_.size(); ++i) answer["choices"].push_back(choice_json(i));
  answer["usage"] = usage();
  reply_.send({.body = to_text(answer)});
}

}  // namespace dofla
