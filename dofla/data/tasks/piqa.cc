// PIQA: which of two ways reaches a goal. The labels stand in a file of their own, one a line:
// valid-labels.lst beside valid.jsonl.
#include "dofla/core/error.h"
#include "dofla/data/tasks/readers.h"
#include "dofla/data/tasks/records.h"

namespace dofla {
namespace {

int64_t read_label(const TextLine& line) {
  const std::string_view label = trimmed(line.text);
  if (label != "0" && label != "1")
    fail("{}: expected the label 0 or 1, found {}", line.where, excerpt(line.text));
  return label == "1" ? 1 : 0;
}

}  // namespace

std::vector<Question> read_piqa(const fs::path& file) {
  const std::vector<JsonRecord> records = read_json_lines(file);
  const fs::path label_file = file.parent_path() / (file.stem().string() + "-labels.lst");
  std::vector<TextLine> labels = read_lines(label_file);
  std::erase_if(labels, [](const TextLine& line) { return is_blank(line.text); });
  if (labels.size() != records.size())
    fail("{}: expected one label for each of the {} questions in {}, found {}", label_file.string(),
         records.size(), file.filename().string(), labels.size());
  std::vector<Question> questions;
  for (size_t i = 0; i < records.size(); ++i) {
    const JsonRecord& record = records[i];
    questions.push_back({{fmt::format("Question: {}\nAnswer:", record.text("goal"))},
                         {record.text("sol1"), record.text("sol2")},
                         read_label(labels[i])});
  }
  return questions;
}

}  // namespace dofla
