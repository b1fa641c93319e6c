// ARC, Easy and Challenge: science questions from school, mostly with four answers.
#include <algorithm>

#include "dofla/core/error.h"
#include "dofla/data/tasks/readers.h"
#include "dofla/data/tasks/records.h"

namespace dofla {
namespace {

Question arc_question(const JsonRecord& record) {
  const JsonRecord question = record.member("question");
  const auto choices = question.object.find("choices");
  if (choices == question.object.end() || !choices->is_array() || choices->size() < 2)
    fail("{}: expected \"choices\", an array of two or more", record.where);
  Question result = {{fmt::format("Question: {}\nAnswer:", question.text("stem"))}, {}, 0};
  std::vector<std::string> labels;  // A B C D, or 1 2 3 4
  for (const Json& entry : *choices) {
    if (!entry.is_object())
      fail("{}: expected a choice {{\"text\", \"label\"}}, found {}", record.where, excerpt(entry));
    const JsonRecord choice = {entry, record.where};
    result.continuations.push_back(choice.text("text"));
    labels.push_back(choice.text("label"));
  }
  const auto gold = std::ranges::find(labels, record.text("answerKey"));
  if (gold == labels.end())
    fail("{}: \"answerKey\" {} is none of the choices' labels", record.where,
         excerpt(record.text("answerKey")));
  result.gold = gold - labels.begin();
  result.stem = fmt::format("Question: {}\n", question.text("stem"));
  result.options = result.continuations;
  return result;
}

}  // namespace

std::vector<Question> read_arc(const fs::path& file) {
  std::vector<Question> questions;
  for (const JsonRecord& record : read_json_lines(file)) questions.push_back(arc_question(record));
  return questions;
}

}  // namespace dofla
