#include "dofla/fidelity/abilities.h"

#include <algorithm>
#include <cmath>

#include <fmt/ranges.h>

#include "dofla/data/tasks/candidate.h"
#include "dofla/evaluate/tasks.h"
#include "dofla/generate/generate.h"

namespace dofla {
namespace {

TaskAbility answer(const Transformer& model, const Tokenizer& tokenizer, const Encode& encode,
                   const TaskQuestions& task, const Progress& progress, const Group& group) {
  TaskAbility ability = {.task = task.task};
  for (const Question& question : task.questions)
    ability.chance += 1 / static_cast<double>(question.candidates() * task.questions.size());
  ability.result = evaluate_task(model, encode_questions(task.questions, encode, model.config()),
                                 progress, group);
  const bool lettered = std::ranges::all_of(
      task.questions, [](const Question& question) { return question.options.size() > 1; });
  if (lettered) {
    ability.by_letter =
        evaluate_letters(model, tokenizer, task.questions, AnswerBy::kLikelihood, progress, group);
    ability.generated =
        evaluate_letters(model, tokenizer, task.questions, AnswerBy::kGeneration, progress, group);
  }
  return ability;
}

// A share of right answers of both, with what guessing gets.
struct Shares {
  double student = 0, teacher = 0, chance = 0;
  double questions = 0;  // that these are means over

  void add(double of_student, double of_teacher, double of_chance, double count) {
    questions += count;
    student += (of_student - student) * count / questions;
    teacher += (of_teacher - teacher) * count / questions;
    chance += (of_chance - chance) * count / questions;
  }
  double teacher_stderr() const {
    return std::sqrt(teacher * (1 - teacher) / std::max(questions - 1, 1.0));
  }
};

// Findings, and what the teacher itself cannot do well enough to tell.
class AbilityFindings {
 public:
  void add(const std::string& about, const Shares& shares) {
    if (shares.questions == 0) return;
    const std::optional<Grade> grade =
        grade_of_kept(shares.student, shares.teacher, shares.teacher_stderr(), shares.chance);
    if (!grade) return untold_.push_back(about);
    findings_.push_back(
        {.grade = grade,
         .about = about,
         .words = fmt::format("{:.1f} % right, its teacher {:.1f} %, guessing {:.1f} %",
                              100 * shares.student, 100 * shares.teacher, 100 * shares.chance)});
  }

  std::vector<Finding> finish() && {
    if (!untold_.empty())
      findings_.push_back({.grade = {},
                           .about = "cannot be told",
                           .words = fmt::format("{}: the teacher is too close to guessing",
                                                fmt::join(untold_, ", "))});
    return std::move(findings_);
  }

 private:
  std::vector<Finding> findings_;
  std::vector<std::string> untold_;
};

// Over the rows of `student` that `teacher` has, too.
template <class Result, class Same, class Share, class Count>
Shares shares_of(const std::vector<Result>& student, const std::vector<Result>& teacher,
                 const Same& same, const Share& share, const Count& count) {
  Shares shares;
  for (const Result& row : student) {
    const auto found =
        std::ranges::find_if(teacher, [&](const Result& other) { return same(row, other); });
    if (found != teacher.end())
      shares.add(share(row), share(*found), row.chance, static_cast<double>(count(row)));
  }
  return shares;
}

constexpr auto kExactShare = [](const auto& row) {
  return static_cast<double>(row.exact) / static_cast<double>(row.questions);
};
constexpr auto kQuestions = [](const auto& row) { return row.questions; };
constexpr auto kSameDistance = [](const auto& a, const auto& b) {
  return a.distance == b.distance;
};

void add_recall(const RecallReport& student, const RecallReport& teacher,
                AbilityFindings& findings) {
  findings.add("recall",
               shares_of(student.recall, teacher.recall, kSameDistance, kExactShare, kQuestions));
  findings.add("needle in text", shares_of(
                                     student.needle, teacher.needle,
                                     [](const NeedleResult& a, const NeedleResult& b) {
                                       return a.length == b.length && a.depth == b.depth;
                                     },
                                     kExactShare, kQuestions));
  findings.add("induction", shares_of(
                                student.induction, teacher.induction, kSameDistance,
                                [](const InductionResult& row) { return row.accuracy; },
                                [](const InductionResult& row) { return row.distance; }));
}

}  // namespace

Abilities measure_abilities(const Transformer& model, const Tokenizer& tokenizer,
                            const AbilityQuestions& questions, const Progress& progress,
                            const Group& group) {
  const Encode encode = [&](std::string_view text) { return tokenizer.encode(text, false); };
  Abilities abilities;
  if (questions.recall)
    abilities.recall = evaluate_recall(model, tokenizer, *questions.recall, questions.distances,
                                       questions.depths, progress, group);
  if (!questions.last_words.empty())
    abilities.last_words = evaluate_last_words(
        model, encode_questions(questions.last_words, encode, model.config()), progress, group);
  for (const TaskQuestions& task : questions.tasks)
    abilities.tasks.push_back(answer(model, tokenizer, encode, task, progress, group));
  if (!questions.prompts.empty())
    abilities.continuations =
        generate_greedily(model, questions.prompts, questions.continuation, progress, group);
  return abilities;
}

std::vector<Finding> ability_findings(const Abilities& student, const Abilities& teacher) {
  AbilityFindings findings;
  const auto add = [&](const std::string& about, double own, double other, double chance,
                       int64_t questions) {
    findings.add(about, {own, other, chance, static_cast<double>(questions)});
  };
  add_recall(student.recall, teacher.recall, findings);
  if (student.last_words && teacher.last_words)
    add("last words", student.last_words->acc.mean, teacher.last_words->acc.mean, 0,
        student.last_words->words);
  for (size_t i = 0; i < std::min(student.tasks.size(), teacher.tasks.size()); ++i) {
    const TaskAbility &own = student.tasks[i], &other = teacher.tasks[i];
    add(own.task, own.result.acc.mean, other.result.acc.mean, own.chance, own.result.questions);
    if (own.generated && other.generated)
      add(own.task + " (written)", own.generated->acc.mean, other.generated->acc.mean,
          own.generated->chance, own.generated->questions);
  }
  std::vector<Finding> all = std::move(findings).finish();
  if (student.continuations.empty()) return all;
  const Agreement same = agreement(teacher.continuations, student.continuations);
  all.push_back({.grade = {},
                 .about = "greedy text",
                 .words = fmt::format("the same for {:.0f} of {} tokens in the median; {:.0f} % of "
                                      "{} texts to their end",
                                      same.median, same.tokens, 100 * same.equal, same.prompts)});
  return all;
}

}  // namespace dofla
