#include "dofla/serve/chat_template.h"

#include <chrono>
#include <ctime>

#include <fmt/format.h>

namespace dofla {
namespace {

using Marks = ChatTemplate::Marks;

ChatTemplate chatml() {
  ChatTemplate out = {.name = "chatml"};
  const auto turn = [](const char* role) {
    return Marks{fmt::format("<|im_start|>{}\n", role), "<|im_end|>\n"};
  };
  out.system = turn("system");
  out.user = turn("user");
  out.assistant = turn("assistant");
  out.answer = out.assistant.open;
  out.end = "<|im_end|>";
  return out;
}

ChatTemplate llama3(const ChatTokens& tokens) {
  ChatTemplate out = {.name = "llama3", .begin = tokens.begin_of_text};
  const auto turn = [](const char* role) {
    return Marks{fmt::format("<|start_header_id|>{}<|end_header_id|>\n\n", role), "<|eot_id|>"};
  };
  out.system = turn("system");
  out.user = turn("user");
  out.assistant = turn("assistant");
  out.answer = out.assistant.open;
  out.end = "<|eot_id|>";
  out.trims = true;
  return out;
}

ChatTemplate llama2(const ChatTokens& tokens) {
  ChatTemplate out = {.name = "llama2"};
  out.system = {"<<SYS>>\n", "\n<</SYS>>\n\n"};
  out.user = {tokens.begin_of_text + "[INST] ", " [/INST]"};
  out.assistant = {" ", " " + tokens.end_of_text};
  out.end = tokens.end_of_text;
  out.place = ChatTemplate::System::kFirstUser;
  out.trims = true;
  out.alternates = true;
  return out;
}

ChatTemplate mistral(const ChatTokens& tokens) {
  ChatTemplate out = {.name = "mistral", .begin = tokens.begin_of_text};
  out.system = {"", "\n\n"};
  out.user = {"[INST] ", " [/INST]"};
  out.assistant = {"", tokens.end_of_text};
  out.end = tokens.end_of_text;
  out.place = ChatTemplate::System::kFirstUser;
  out.alternates = true;
  return out;
}

ChatTemplate zephyr(const ChatTokens& tokens) {
  ChatTemplate out = {.name = "zephyr"};
  const std::string close = tokens.end_of_text + "\n";
  out.system = {"<|system|>\n", close};
  out.user = {"<|user|>\n", close};
  out.assistant = {"<|assistant|>\n", close};
  out.answer = out.assistant.open;
  out.end = tokens.end_of_text;
  return out;
}

// A Jinja text in one spelling: single quotes, no spaces outside of quotes, message['role'], and
// a line break where quotes hold one or write \n.
std::string in_one_spelling(std::string_view jinja) {
  std::string out;
  char quote = 0;
  for (size_t i = 0; i < jinja.size(); ++i) {
    const char c = jinja[i];
    if (quote != 0 && c == '\\' && i + 1 < jinja.size() && jinja[i + 1] == 'n') {
      out += '\n';
      ++i;
    } else if (quote == 0 && (c == '\'' || c == '"')) {
      quote = c;
      out += '\'';
    } else if (quote != 0 && c == quote) {
      quote = 0;
      out += '\'';
    } else if (quote != 0 || c != ' ') {
      out += c;
    }
  }
  for (const char* field : {"role", "content"}) {
    const std::string plain = fmt::format("message.{}", field);
    for (size_t at; (at = out.find(plain)) != out.npos;)
      out.replace(at, plain.size(), fmt::format("message['{}']", field));
  }
  return out;
}

bool has(std::string_view text, std::string_view part) {
  return text.find(part) != text.npos;
}

// The system message that a template writes where a conversation has none: what stands as it is
// between two marks.
std::optional<std::string> text_between(std::string_view text, std::string_view open,
                                        std::string_view close) {
  for (size_t at = text.find(open); at != text.npos; at = text.find(open, at + 1)) {
    const size_t begin = at + open.size();
    const size_t end = text.find(close, begin);
    if (end == text.npos) return std::nullopt;
    const std::string_view found = text.substr(begin, end - begin);
    if (!found.empty() && found.find_first_of("'{}") == found.npos) return std::string(found);
  }
  return std::nullopt;
}

std::optional<ChatTemplate> recognise_chatml(std::string_view text, const ChatTokens& tokens) {
  const bool structure =
      has(text, "'<|im_start|>'+message['role']+'\n'+message['content']+'<|im_end|>'") ||
      has(text, "'<|im_start|>'+message['role']+'\n'+message['content']+'<|im_end|>\n'") ||
      has(text, "'<|im_start|>'+message['role']+'\n'+content+'<|im_end|>'");
  if (!structure) return std::nullopt;
  ChatTemplate out = chatml();
  if (has(text, "{{bos_token") || has(text, "{{-bos_token")) out.begin = tokens.begin_of_text;
  out.default_system = text_between(text, "'<|im_start|>system\n", "<|im_end|>");
  out.drops_thoughts = has(text, "</think>");
  return out;
}

std::string today() {
  const std::time_t now = std::chrono::system_clock::to_time_t(std::chrono::system_clock::now());
  std::tm date = {};
  ::localtime_r(&now, &date);
  char text[32];
  return {text, std::strftime(text, sizeof text, "%d %b %Y", &date)};
}

std::optional<ChatTemplate> recognise_llama3(std::string_view text, const ChatTokens& tokens) {
  const bool structure =
      has(text,
          "'<|start_header_id|>'+message['role']+'<|end_header_id|>\n\n'+message['content']|trim");
  if (!structure) return std::nullopt;
  ChatTemplate out = llama3(tokens);
  if (has(text, "Cutting Knowledge Date: December 2023\n")) {
    const std::string date = has(text, "strftime_now") ? today() : "26 Jul 2024";
    out.system.open +=
        fmt::format("Cutting Knowledge Date: December 2023\nToday Date: {}\n\n", date);
    out.default_system = "";
  }
  return out;
}

// The versions of Mistral's template differ in spaces and in where the system message goes.
std::optional<ChatTemplate> recognise_mistral(std::string_view text, const ChatTokens& tokens) {
  ChatTemplate out = mistral(tokens);
  for (const char* open : {"'[INST] '+message", "' [INST] '+message", "'[INST]'+message"})
    if (has(text, open)) out.user.open = text_between(open, "'", "'").value();
  const char* closes[] = {"message['content']+' [/INST]'", "message['content']+'[/INST]'"};
  if (!has(text, closes[0]) && !has(text, closes[1])) return std::nullopt;
  out.user.close = has(text, closes[0]) ? " [/INST]" : "[/INST]";
  if (has(text, "' '+message['content']")) out.assistant.open = " ";
  out.trims_answers = has(text, "message['content']|trim");
  if (!has(text, "system_message")) {
    out.place = ChatTemplate::System::kRefused;
  } else if (has(text, "loop.lastandsystem_message")) {
    out.place = ChatTemplate::System::kLastUser;
  }
  return out;
}

std::optional<ChatTemplate> recognise_zephyr(std::string_view text, const ChatTokens& tokens) {
  if (!has(text, "'<|user|>\n'+message['content']+eos_token")) return std::nullopt;
  ChatTemplate out = zephyr(tokens);
  // A line break behind an expression is part of the result.
  const bool breaks = has(text, "eos_token}}\n") || has(text, "eos_token+'\n'}}");
  if (!breaks)
    for (Marks* turn : {&out.system, &out.user, &out.assistant}) turn->close.pop_back();
  if (!has(text, "'<|assistant|>'}}\n") && !has(text, "{{'<|assistant|>\n'}}"))
    out.answer = "<|assistant|>";
  return out;
}

}  // namespace

const char* chat_template_names() {
  return "chatml, llama2, llama3, mistral, tinyllama or zephyr";
}

std::optional<ChatTemplate> named_chat_template(std::string_view name, const ChatTokens& tokens) {
  if (name == "chatml") return chatml();
  if (name == "llama2") return llama2(tokens);
  if (name == "llama3") return llama3(tokens);
  if (name == "mistral") return mistral(tokens);
  if (name == "zephyr" || name == "tinyllama") return zephyr(tokens);  // one and the same
  return std::nullopt;
}

std::optional<ChatTemplate> recognise_chat_template(std::string_view jinja,
                                                    const ChatTokens& tokens) {
  const std::string text = in_one_spelling(jinja);
  if (has(text, "<|im_start|>")) return recognise_chatml(text, tokens);
  if (has(text, "<|start_header_id|>")) return recognise_llama3(text, tokens);
  if (has(text, "<|user|>")) return recognise_zephyr(text, tokens);
  if (!has(text, "[INST]")) return std::nullopt;
  if (!has(text, "<<SYS>>")) return recognise_mistral(text, tokens);
  const bool structure = has(text, "bos_token+'[INST] '+content.strip()+' [/INST]'") &&
                         has(text, "' '+content.strip()+' '+eos_token");
  return structure ? std::optional(llama2(tokens)) : std::nullopt;
}

}  // namespace dofla
