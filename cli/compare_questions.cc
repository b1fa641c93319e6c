#include "cli/compare_questions.h"

#include <algorithm>

#include "dofla/core/error.h"
#include "dofla/data/tasks/last_words.h"

namespace dofla::cli {
namespace {

struct Amounts {
  int64_t recall, last_words, questions;  // of each distance, in all, and of each task
  int64_t prompts, continuation;          // of greedy text
};

Amounts amounts_of(FidelitySuite suite) {
  return suite == FidelitySuite::kQuick ? Amounts{8, 100, 40, 8, 32}
                                        : Amounts{20, 500, 100, 64, 64};
}

// Up to what the teacher can read, and beyond it for students that can read more.
std::vector<int64_t> recall_distances(int64_t context, FidelitySuite suite) {
  constexpr int64_t kAnswer = 8;  // tokens
  const int64_t longest = context - RecallPrompts::kRest - kAnswer;
  std::vector<int64_t> distances = {longest / 4, longest};
  if (suite == FidelitySuite::kFull) distances = {longest / 8, longest / 2, longest, 2 * context};
  std::erase_if(distances, [](int64_t distance) { return distance < 1; });
  return distances;
}

void add_recall(const Checkpoint& teacher, const Tokenizer& tokenizer, const RunningText& text,
                FidelitySuite suite, AbilityQuestions& questions) {
  const int64_t count = amounts_of(suite).recall;
  questions.distances = recall_distances(teacher.config().context, suite);
  if (questions.distances.empty()) fail("the context is too short");
  questions.depths = suite == FidelitySuite::kQuick ? std::vector{0.1} : std::vector{0.1, 0.5, 0.9};
  const int64_t longest = questions.distances.back();
  RecallPrompts prompts(tokenizer, text(count * RecallPrompts::tokens(longest)), count, longest, 0);
  for (const int64_t distance : questions.distances) prompts.question(0, distance);  // can be made
  questions.recall = std::move(prompts);
}

void add_prompts(const Checkpoint& teacher, const RunningText& text, FidelitySuite suite,
                 AbilityQuestions& questions) {
  // Long enough for a student to have forgotten something.
  const int64_t prompt_tokens = teacher.config().context / 2;
  const Amounts amounts = amounts_of(suite);
  questions.prompts =
      prompts_from(text(amounts.prompts * prompt_tokens), amounts.prompts, prompt_tokens);
  questions.continuation = std::min(amounts.continuation, teacher.config().context - prompt_tokens);
  if (questions.continuation < 1) fail("the context is too short");
}

}  // namespace

void CompareQuestions::add(CLI::App& app) {
  app.add_option("--last-words", last_words_,
                 "texts whose last word is to be predicted, such as LAMBADA's: lines\n"
                 "of {\"context\", \"continuation\"}")
      ->type_name("F");
  app.add_option("--tasks", tasks_,
                 "folder of tasks' folders (piqa, arc_easy, ...): all of them are evaluated")
      ->type_name("DIR");
}

AbilityQuestions CompareQuestions::read(const Checkpoint& teacher, const Tokenizer& tokenizer,
                                        const RunningText& text, FidelitySuite suite,
                                        std::vector<std::string>& left_out) const {
  AbilityQuestions questions;
  const Amounts amounts = amounts_of(suite);
  if (!last_words_.empty())
    questions.last_words = evenly_spread(read_last_words(last_words_), amounts.last_words);
  if (!tasks_.empty()) {
    for (const Task& task : tasks()) {
      if (!fs::is_directory(fs::path(tasks_) / task.name)) continue;
      const TaskSplit& split = find_split(task, task.evaluated);
      questions.tasks.push_back(
          {task.name, evenly_spread(read_questions(task, split, tasks_), amounts.questions)});
    }
    if (questions.tasks.empty()) fail("{}: holds no folder of a task", tasks_);
  }
  // A page that is silent of answers would be taken for one that found them in order.
  if (last_words_.empty())
    left_out.emplace_back("last words: not requested (dofla compare --last-words F)");
  if (tasks_.empty()) left_out.emplace_back("tasks: not requested (dofla compare --tasks DIR)");
  const auto attempt = [&](const char* what, const auto& add) {
    try {
      add();
    } catch (const Error& reason) {
      left_out.push_back(fmt::format("{}: {}", what, reason.what()));
    }
  };
  attempt("recall", [&] { add_recall(teacher, tokenizer, text, suite, questions); });
  attempt("greedy text", [&] { add_prompts(teacher, text, suite, questions); });
  return questions;
}

}  // namespace dofla::cli
