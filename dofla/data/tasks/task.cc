#include "dofla/data/tasks/task.h"

#include <algorithm>

#include <fmt/ranges.h>

#include "dofla/core/error.h"
#include "dofla/core/json.h"
#include "dofla/data/tasks/readers.h"

namespace dofla {
namespace {

template <class Named>
const Named& find_named(const std::vector<Named>& all, std::string_view name,
                        std::string_view what) {
  const auto found = std::ranges::find(all, name, &Named::name);
  if (found != all.end()) return *found;
  std::vector<std::string_view> names;
  for (const Named& one : all) names.push_back(one.name);
  fail("{}: no such {}; there are {}", printable(name), what, fmt::join(names, ", "));
}

std::vector<TaskSplit> arc_splits(const std::string& set) {
  return {{"train", set + "-Train.jsonl"},
          {"validation", set + "-Dev.jsonl"},
          {"test", set + "-Test.jsonl"}};
}

}  // namespace

Question lettered(const Question& question, size_t turn) {
  constexpr size_t kMost = 26;
  const size_t count = question.options.size();
  if (count < 2 || count > kMost)
    fail("a question with {} options cannot be asked by letters: that takes 2 to {}", count, kMost);
  Question result = {{question.stem}, {}, 0, question.stem, {}};
  for (size_t i = 0; i < count; ++i) {
    const auto letter = static_cast<char>('A' + i);
    const size_t option = (i + turn) % count;
    result.options.push_back(question.options[option]);
    result.continuations.emplace_back(1, letter);
    result.contexts[0] += fmt::format("{}. {}\n", letter, question.options[option]);
    if (option == static_cast<size_t>(question.gold)) result.gold = static_cast<int64_t>(i);
  }
  result.contexts[0] += "Answer:";
  return result;
}

const std::vector<Task>& tasks() {
  static const std::vector<Task> all = {
      {"piqa",
       {{"train", "train.jsonl"}, {"validation", "valid.jsonl"}},
       "validation",
       "train",
       read_piqa},
      {"logiqa",
       {{"train", "Train.txt"}, {"validation", "Eval.txt"}, {"test", "Test.txt"}},
       "test",
       "train",
       read_logiqa},
      {"arc_easy", arc_splits("ARC-Easy"), "test", "train", read_arc},
      {"arc_challenge", arc_splits("ARC-Challenge"), "test", "train", read_arc},
      {"winogrande",
       {{"train_xs", "train_xs.jsonl"},
        {"train_s", "train_s.jsonl"},
        {"train_m", "train_m.jsonl"},
        {"train_l", "train_l.jsonl"},
        {"train_xl", "train_xl.jsonl"},
        {"validation", "dev.jsonl"}},
       "validation",
       "train_l",
       read_winogrande},
      {"wsc",
       {{"train", "train.jsonl"}, {"validation", "val.jsonl"}},
       "validation",
       "train",
       read_wsc},
      // The training questions that MMLU offers are those of other tasks, and not in every copy of
      // it; its own validation questions always are.
      {"mmlu",
       {{"auxiliary_train", "auxiliary_train"},
        {"dev", "dev"},
        {"validation", "val"},
        {"test", "test"}},
       "test",
       "validation",
       read_mmlu},
  };
  return all;
}

const Task& find_task(std::string_view name) {
  return find_named(tasks(), name, "task");
}

const TaskSplit& find_split(const Task& task, std::string_view name) {
  return find_named(task.splits, name, "split of " + task.name);
}

std::vector<Question> read_questions(const Task& task, const TaskSplit& split,
                                     const fs::path& data) {
  std::error_code error;
  if (!fs::is_directory(data, error)) fail("{}: no such folder", data.string());
  const fs::path inside = data / task.name;
  const fs::path file = (fs::is_directory(inside, error) ? inside : data) / split.file;
  if (!fs::exists(file, error))
    fail("{}: missing; the {} questions of {} are read from it", file.string(), split.name,
         task.name);
  std::vector<Question> questions = task.read(file);
  if (questions.empty()) fail("{}: empty: no question in it", file.string());
  return questions;
}

std::vector<Question> evenly_spread(std::vector<Question> questions, int64_t most) {
  const auto count = static_cast<int64_t>(questions.size());
  if (most == 0 || most >= count) return questions;
  std::vector<Question> kept;
  for (int64_t i = 0; i < most; ++i)
    kept.push_back(std::move(questions[static_cast<size_t>(i * count / most)]));
  return kept;
}

double chance(const std::vector<Question>& questions) {
  double sum = 0;
  for (const Question& question : questions) sum += 1 / static_cast<double>(question.candidates());
  return sum / static_cast<double>(questions.size());
}

}  // namespace dofla
