// Multiple-choice tasks: what a question is, which tasks there are, and how to read one.
// docs/tasks.md shows every prompt.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "dofla/core/file.h"

namespace dofla {

// Candidate i is the text context(i) + " " + continuation(i). The model is asked how likely the
// continuation is, given the context. Either the candidates share the context and differ in the
// continuation, or, as in WinoGrande, it is the other way round.
struct Question {
  std::vector<std::string> contexts;       // one for all candidates, or one each
  std::vector<std::string> continuations;  // likewise; none is empty
  int64_t gold = 0;                        // the right candidate

  // Where the files have labelled options: the question without them, and these in its order, so
  // that they can be shown behind letters. No options otherwise.
  std::string stem = {};  // ends with a line end
  std::vector<std::string> options = {};

  size_t candidates() const { return std::max(contexts.size(), continuations.size()); }
  const std::string& context(size_t i) const { return contexts[contexts.size() == 1 ? 0 : i]; }
  const std::string& continuation(size_t i) const {
    return continuations[continuations.size() == 1 ? 0 : i];
  }
};

// The question with its options shown behind letters, the first `turn` of them moved to the end:
// the stem, "A. …", "B. …" and "Answer:". Its candidates are the letters, and option i stands
// behind letter (i − turn) mod options. Throws Error unless it has 2 to 26 options.
Question lettered(const Question& question, size_t turn = 0);

struct TaskSplit {
  std::string name;  // "train", "validation", "test", …
  std::string file;  // in the task's folder, as its authors named it; a folder for MMLU
};

struct Task {
  std::string name;  // also that of its folder
  std::vector<TaskSplit> splits;
  std::string evaluated;  // the split that published accuracies are of
  std::string trained;    // the split to fine-tune on
  // The questions of a file. Throws Error "file:line: …" on a malformed record.
  std::vector<Question> (*read)(const fs::path& file);
};

const std::vector<Task>& tasks();

// Throws Error listing the names there are.
const Task& find_task(std::string_view name);
const TaskSplit& find_split(const Task& task, std::string_view name);

// Reads a split from `data`, which is either the task's own folder or holds one of the task's name.
// Throws Error naming the file if it is missing, malformed or without a question.
std::vector<Question> read_questions(const Task& task, const TaskSplit& split,
                                     const fs::path& data);

// `most` of the questions, evenly spread: MMLU's files go by subject. 0 stands for all.
std::vector<Question> evenly_spread(std::vector<Question> questions, int64_t most);

// The share of at least one question that guessing gets right.
double chance(const std::vector<Question>& questions);

}  // namespace dofla
