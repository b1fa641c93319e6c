#include "dofla/data/tasks/last_words.h"

#include "dofla/core/error.h"
#include "dofla/data/tasks/records.h"

namespace dofla {

std::vector<Question> read_last_words(const fs::path& file) {
  std::vector<Question> questions;
  for (const JsonRecord& record : read_json_lines(file)) {
    const std::string& context = record.text("context");
    // Spaces at its end only: a text may begin with some.
    const std::string_view last = trimmed(context);
    const auto end = static_cast<size_t>(last.data() + last.size() - context.data());
    questions.push_back(
        {{context.substr(0, end)}, {std::string(trimmed(record.text("continuation")))}, 0});
  }
  if (questions.empty())
    fail("{}: empty: expected lines of {{\"context\", \"continuation\"}}", file.string());
  return questions;
}

}  // namespace dofla
