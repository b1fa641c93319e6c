// WinoGrande: which of two names fills the gap in a sentence. The candidates are the sentence up to
// and with the name; what is scored is the rest of the sentence, the same for both.
#include "dofla/core/error.h"
#include "dofla/data/tasks/readers.h"
#include "dofla/data/tasks/records.h"

namespace dofla {
namespace {

Question winogrande_question(const JsonRecord& record) {
  const std::string& sentence = record.text("sentence");
  const size_t gap = sentence.find('_');
  if (gap == sentence.npos)
    fail("{}: expected a \"sentence\" with a gap \"_\", found {}", record.where, excerpt(sentence));
  const std::string rest(trimmed(std::string_view(sentence).substr(gap + 1)));
  if (rest.empty()) fail("{}: nothing follows the gap: nothing to score", record.where);
  const std::string& answer = record.text("answer");
  if (answer != "1" && answer != "2")
    fail("{}: expected the \"answer\" \"1\" or \"2\", found {}", record.where, excerpt(answer));
  const std::string before = sentence.substr(0, gap);
  return {{before + record.text("option1"), before + record.text("option2")},
          {rest},
          answer == "2" ? 1 : 0};
}

}  // namespace

std::vector<Question> read_winogrande(const fs::path& file) {
  std::vector<Question> questions;
  for (const JsonRecord& record : read_json_lines(file))
    questions.push_back(winogrande_question(record));
  return questions;
}

}  // namespace dofla
