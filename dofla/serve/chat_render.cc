#include "dofla/checkpoint/tokenizer/unicode.h"
#include "dofla/core/error.h"
#include "dofla/serve/chat_template.h"

namespace dofla {
namespace {

using Marks = ChatTemplate::Marks;

std::string trimmed(std::string_view text) {
  const auto is_space = [&](size_t at) {
    return classify(character_at(text, at).code) == CharClass::kSpace;
  };
  while (!text.empty() && is_space(0)) text.remove_prefix(character_at(text, 0).length);
  while (!text.empty() && is_space(character_before(text, text.size())))
    text = text.substr(0, character_before(text, text.size()));
  return std::string(text);
}

std::string answer_without_thoughts(const std::string& answer) {
  const size_t end = answer.rfind("</think>");
  if (end == answer.npos) return answer;
  const size_t begin = answer.find_first_not_of('\n', end + 8);
  return begin == answer.npos ? "" : answer.substr(begin);
}

void require_alternation(const ChatTemplate& format, const std::vector<ChatMessage>& messages) {
  const char* expected = "user";
  for (const ChatMessage& message : messages) {
    require(message.role == expected,
            "the model's chat template ({}) takes user and assistant in turn after an optional "
            "system message: expected {}, found {}",
            format.name, expected, message.role);
    expected = message.role == "user" ? "assistant" : "user";
  }
}

}  // namespace

std::vector<TextPiece> render_chat(const ChatTemplate& format,
                                   const std::vector<ChatMessage>& messages) {
  using System = ChatTemplate::System;
  require(!messages.empty(), "a conversation needs at least one message");
  std::vector<ChatMessage> turns = messages;
  std::optional<std::string> system = format.default_system;
  if (turns.front().role == "system") {
    system = turns.front().content;
    turns.erase(turns.begin());
    require(format.place != System::kRefused,
            "the model's chat template ({}) has no place for a system message", format.name);
  }
  if (format.alternates) require_alternation(format, turns);

  std::vector<TextPiece> out = {{format.begin, true}};
  const auto add = [&](const Marks& turn, const std::string& content) {
    out.push_back({turn.open, true});
    out.push_back({content, false});
    out.push_back({turn.close, true});
  };
  const auto content_of = [&](const ChatMessage& message) {
    std::string text = message.content;
    if (format.drops_thoughts && message.role == "assistant") text = answer_without_thoughts(text);
    const bool trims = format.trims || (format.trims_answers && message.role == "assistant");
    return trims ? trimmed(text) : text;
  };
  if (system && format.place == System::kTurn) add(format.system, content_of({"system", *system}));
  for (size_t i = 0; i < turns.size(); ++i) {
    const ChatMessage& message = turns[i];
    const size_t holder = format.place == System::kLastUser ? turns.size() - 1 : 0;
    if (message.role != "user") {
      add(message.role == "system" ? format.system : format.assistant, content_of(message));
    } else if (system && format.place != System::kTurn && i == holder) {
      out.push_back({format.user.open + format.system.open, true});
      out.push_back({*system, false});
      out.push_back({format.system.close, true});
      // White space between the two stands inside the message.
      const std::string whole =
          format.trims ? trimmed("." + message.content).substr(1) : message.content;
      out.push_back({whole, false});
      out.push_back({format.user.close, true});
    } else {
      add(format.user, content_of(message));
    }
  }
  out.push_back({format.answer, true});
  return out;
}

}  // namespace dofla
