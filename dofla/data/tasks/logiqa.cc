// LogiQA: a passage, a question about it, four answers. Records stand between blank lines:
//
//   b                  the right answer
//   The passage, all of it in one line.
//   The question.
//   A.The first answer
//   B.The second answer
//   C.The third answer
//   D.The fourth answer
#include "dofla/core/error.h"
#include "dofla/data/tasks/readers.h"
#include "dofla/data/tasks/records.h"

namespace dofla {
namespace {

constexpr size_t kAnswers = 4;
constexpr size_t kLines = 3 + kAnswers;

// The files have no space after a full stop; the harness puts one after each.
std::string spaced(std::string_view text) {
  std::string result;
  for (const char c : text) {
    result += c;
    if (c == '.') result += ' ';
  }
  return std::string(trimmed(result));
}

// Without its "A.", which some lines write "A " or "A?" and some lack.
std::string answer_text(const TextLine& line) {
  std::string_view text = line.text;
  const auto is_letter = [](char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); };
  const bool labelled = text.size() >= 2 &&
                        std::string_view("ABCDabcd").find(text[0]) != text.npos &&
                        !is_letter(text[1]);
  if (labelled) text.remove_prefix(2);
  std::string answer = spaced(text);
  if (answer.empty()) fail("{}: the answer is empty", line.where);
  return answer;
}

int64_t gold_of(const TextLine& line) {
  const std::string_view label = trimmed(line.text);
  if (label.size() != 1 || label[0] < 'a' || label[0] > 'd')
    fail("{}: expected the right answer, a, b, c or d, found {}", line.where, excerpt(line.text));
  return label[0] - 'a';
}

Question to_question(const TextLine* lines) {
  Question question = {{}, {}, gold_of(lines[0])};
  question.stem = fmt::format("Passage: {}\nQuestion: {}\nChoices:\n", spaced(lines[1].text),
                              spaced(lines[2].text));
  for (size_t i = 0; i < kAnswers; ++i) question.options.push_back(answer_text(lines[3 + i]));
  question.contexts = lettered(question).contexts;
  question.continuations = question.options;
  return question;
}

}  // namespace

std::vector<Question> read_logiqa(const fs::path& file) {
  const std::vector<TextLine> lines = read_lines(file);
  std::vector<Question> questions;
  for (size_t begin = 0; begin < lines.size();) {
    size_t end = begin;
    while (end < lines.size() && !is_blank(lines[end].text)) ++end;
    if (end > begin) {
      if (end - begin != kLines)
        fail("{}: expected {} lines (answer, passage, question, {} choices), found {}",
             lines[begin].where, kLines, kAnswers, end - begin);
      questions.push_back(to_question(&lines[begin]));
    }
    begin = end + 1;
  }
  return questions;
}

}  // namespace dofla
