// WSC, the Winograd schemas as SuperGLUE puts them: does this pronoun refer to that noun?
#include <cmath>
#include <optional>

#include "dofla/core/error.h"
#include "dofla/data/tasks/readers.h"
#include "dofla/data/tasks/records.h"

namespace dofla {
namespace {

void replace_all(std::string& text, const std::string& from, const std::string& to) {
  for (size_t at = text.find(from); at != text.npos; at = text.find(from, at + to.size()))
    text.replace(at, from.size(), to);
}

// The texts have spaces around punctuation. In this order: the harness's.
void close_up(std::string& text) {
  replace_all(text, " n't", "n't");
  replace_all(text, " )", ")");
  replace_all(text, "( ", "(");
  replace_all(text, "\" ", "\"");
  replace_all(text, " \"", "\"");
  for (const char* mark : {"'", ".", ","}) replace_all(text, std::string(" ") + mark, mark);
}

// Where the pronoun begins. Its index counts words; one record of the validation set points one
// word too early, so the nearest word that begins with the pronoun is taken.
std::optional<size_t> find_pronoun(std::string_view text, std::string_view pronoun, int64_t index) {
  std::optional<size_t> nearest;
  int64_t word = 0, distance = 0;
  for (size_t at = 0; (at = text.find_first_not_of(' ', at)) != text.npos; ++word) {
    const int64_t off = std::abs(word - index);
    if (text.substr(at).starts_with(pronoun) && (!nearest || off < distance)) {
      nearest = at;
      distance = off;
    }
    at = std::min(text.find(' ', at), text.size());
  }
  return nearest;
}

int64_t word_index(const JsonRecord& target) {
  const auto index = target.object.find("span2_index");
  if (index == target.object.end() || !index->is_number_unsigned() ||
      index->get<uint64_t>() > (uint64_t{1} << 32))
    fail("{}: expected \"span2_index\", the number of a word", target.where);
  return index->get<int64_t>();
}

Question wsc_question(const JsonRecord& record) {
  const JsonRecord target = record.member("target");
  const std::string &noun = target.text("span1_text"), &pronoun = target.text("span2_text");
  const int64_t index = word_index(target);
  const auto label = record.object.find("label");
  if (label == record.object.end() || !label->is_boolean())
    fail("{}: expected a \"label\", true or false", record.where);

  std::string passage = record.text("text");
  const std::optional<size_t> at = find_pronoun(passage, pronoun, index);
  if (!at)
    fail("{}: no word of \"text\" begins with \"span2_text\" {}", record.where, excerpt(pronoun));
  passage.replace(*at, pronoun.size(), "*" + pronoun + "*");
  close_up(passage);
  return {{fmt::format("Passage: {}\n"
                       "Question: In the passage above, does the pronoun \"*{}*\" refer to "
                       "\"*{}*\"?\n"
                       "Answer:",
                       passage, pronoun, noun)},
          {"no", "yes"},
          label->get<bool>() ? 1 : 0};
}

}  // namespace

std::vector<Question> read_wsc(const fs::path& file) {
  std::vector<Question> questions;
  for (const JsonRecord& record : read_json_lines(file)) questions.push_back(wsc_question(record));
  return questions;
}

}  // namespace dofla
