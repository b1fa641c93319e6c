// How conversations are written for a model: ChatML, Llama 2 and 3, Mistral, Zephyr (and
// TinyLlama). A template of tokenizer_config.json is recognised by its structure; Jinja is not
// interpreted.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "dofla/checkpoint/tokenizer.h"

namespace dofla {

struct ChatMessage {
  std::string role;  // system, user or assistant
  std::string content;
};

struct ChatTemplate {
  struct Marks {
    std::string open, close;  // markup around a message
  };
  enum class System { kTurn, kFirstUser, kLastUser, kRefused };

  std::string name = {};
  std::string begin = {};  // before the first message
  Marks system = {}, user = {}, assistant = {};
  std::string answer = {};                         // opens the answer
  std::string end = {};                            // closes it: the model is to stop there
  System place = System::kTurn;                    // where a system message stands
  std::optional<std::string> default_system = {};  // where there is none
  bool trims = false;                              // white space around messages is left out
  bool trims_answers = false;                      // around the assistant's only
  bool alternates = false;      // user and assistant take turns, or the conversation is refused
  bool drops_thoughts = false;  // an earlier answer's text before </think> is left out
};

// Tokens that templates speak of, as the tokenizer's files spell them.
struct ChatTokens {
  std::string begin_of_text, end_of_text;
};

// chatml, llama2, llama3, mistral, zephyr or tinyllama; nothing for another name.
std::optional<ChatTemplate> named_chat_template(std::string_view name, const ChatTokens& tokens);
const char* chat_template_names();  // for messages and help

// The template that a Jinja text amounts to; nothing if it is none of these.
std::optional<ChatTemplate> recognise_chat_template(std::string_view jinja,
                                                    const ChatTokens& tokens);

// The conversation and the beginning of the answer. What users wrote is no markup. Throws
// std::invalid_argument on a conversation that the template cannot express.
std::vector<TextPiece> render_chat(const ChatTemplate& chat_template,
                                   const std::vector<ChatMessage>& messages);

}  // namespace dofla
