// MMLU: exam questions with four answers, one CSV file a subject and no header line:
// question, A, B, C, D, letter of the right one.
#include <algorithm>

#include "dofla/core/error.h"
#include "dofla/data/tasks/readers.h"
#include "dofla/data/tasks/records.h"

namespace dofla {
namespace {

constexpr size_t kColumns = 6;

// "college_medicine_test.csv" in the folder "test" is about college medicine. The questions of
// auxiliary_train are of no subject.
std::string description(const fs::path& file) {
  const std::string split = file.parent_path().filename().string();
  std::string subject = file.stem().string();
  if (split == "auxiliary_train")
    return "The following are multiple choice questions (with answers).\n\n";
  if (subject.ends_with("_" + split)) subject.resize(subject.size() - split.size() - 1);
  std::ranges::replace(subject, '_', ' ');
  return fmt::format("The following are multiple choice questions (with answers) about {}.\n\n",
                     subject);
}

Question to_question(const CsvRow& row, const std::string& introduction) {
  const std::vector<std::string>& fields = row.fields;
  if (fields.size() != kColumns)
    fail("{}: expected {} fields (question, A, B, C, D, answer), found {}", row.where, kColumns,
         fields.size());
  for (const std::string& field : fields)
    if (is_blank(field)) fail("{}: a field is empty", row.where);
  const std::string_view answer = trimmed(fields[5]);
  if (answer.size() != 1 || answer[0] < 'A' || answer[0] > 'D')
    fail("{}: expected the answer A, B, C or D, found {}", row.where, excerpt(fields[5]));
  return lettered({{},
                   {},
                   answer[0] - 'A',
                   fmt::format("{}{}\n", introduction, trimmed(fields[0])),
                   {fields.begin() + 1, fields.begin() + 5}});
}

}  // namespace

std::vector<Question> read_mmlu(const fs::path& folder) {
  std::error_code error;
  const fs::directory_iterator entries(folder, error);
  if (error) fail("{}: expected a folder of .csv files: {}", folder.string(), error.message());
  std::vector<fs::path> files;
  for (const fs::directory_entry& entry : entries)
    if (entry.path().extension() == ".csv") files.push_back(entry.path());
  std::ranges::sort(files);
  std::vector<Question> questions;
  for (const fs::path& file : files) {
    const std::string introduction = description(file);
    for (const CsvRow& row : read_csv(file)) questions.push_back(to_question(row, introduction));
  }
  return questions;
}

}  // namespace dofla
