// Evaluation of a model's folder, alone or beside its teacher's: what is read, loaded and measured.
// Every function throws Error if a folder changes meanwhile.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "dofla/data/tasks/task.h"
#include "dofla/distributed/group.h"
#include "dofla/evaluate/answers.h"
#include "dofla/evaluate/controls.h"
#include "dofla/evaluate/last_words.h"
#include "dofla/evaluate/next_token.h"
#include "dofla/evaluate/recall.h"
#include "dofla/fidelity/divergence.h"
#include "dofla/ops/exact_keys.h"
#include "dofla/pipeline/text.h"

namespace dofla {

struct TextEvaluation {
  NextTokenLoss next_token;
  double seconds = 0;
};

// With `exact` the attention of a softmax model is cut to these keys: Error for a student. All
// ranks.
TextEvaluation evaluate_text(const Checkpoint& checkpoint, const std::optional<ExactKeys>& exact,
                             const Windows& text, const Device& device, const Progress& progress,
                             const Group& group = {});

// A student's loss, and how much of the teacher is in it.
struct TeacherEvaluation {
  Divergence divergence;
  std::vector<double> attention_error;  // a number a layer: layer_errors()
  Controls controls;                    // of a linear or hybrid student
  int64_t state_bytes = 0;
};

// All ranks.
TeacherEvaluation evaluate_beside_teacher(const Checkpoint& checkpoint, const Checkpoint& teacher,
                                          const Windows& text, const Device& device,
                                          const Progress& progress, const Group& group = {});

struct TaskSelection {
  std::vector<std::string> names = {};
  fs::path data = {};
  std::string split = {};                // empty: the one that published accuracies are of
  int64_t limit = 0;                     // questions of a task, evenly spread; 0: all
  std::optional<AnswerBy> letters = {};  // show the options behind letters
};

struct TaskEvaluation {
  const Task* task = nullptr;
  const TaskSplit* split = nullptr;
  double chance = 0;  // what guessing gets right
  TaskResult result = {};
  std::optional<LetteredResult> lettered = {};  // instead, with letters
};

struct TaskEvaluations {
  std::vector<TaskEvaluation> tasks;  // in the order of the names
  int64_t questions = 0;              // of all
  double seconds = 0;
};

// All files are read before the model is: a defect in the last one must not show after an hour. All
// ranks.
TaskEvaluations evaluate_tasks(const fs::path& model, const TaskSelection& selection,
                               const Device& device, const Progress& progress = {},
                               const Group& group = {});

// Of the texts in a file (data/tasks/last_words.h). All ranks.
LastWords evaluate_last_words(const fs::path& model, const fs::path& file, const Device& device,
                              const Progress& progress = {}, const Group& group = {});

struct RecallOptions {
  std::vector<int64_t> distances = {128, 256, 512, 1024, 1900};
  std::vector<double> depths = {0, 0.5, 1};
  int64_t questions = 50;  // at each distance
  uint64_t seed = 0;       // of the numbers and their places
  // The attention of a softmax model is cut to these keys: Error for a student.
  std::optional<ExactKeys> exact = {};
};

struct RecallEvaluation {
  std::vector<int64_t> distances;  // each once, the shortest first
  RecallReport report;
  int64_t most_tokens = 0;  // that the model takes
  std::optional<RecallReport> teacher = {};
  int64_t teacher_most_tokens = 0;
};

// The prompts are put into text of which `running_text` hands out the beginning. `teacher` may be
// null. All ranks.
RecallEvaluation evaluate_recall(const Checkpoint& checkpoint, const Checkpoint* teacher,
                                 const std::function<TokenIds(int64_t most_tokens)>& running_text,
                                 const RecallOptions& options, const Device& device,
                                 const Progress& progress = {}, const Group& group = {});

}  // namespace dofla
