#include "dofla/pipeline/evaluate.h"

#include <algorithm>

#include "dofla/checkpoint/same_vocabulary.h"
#include "dofla/checkpoint/tokenizer.h"
#include "dofla/core/error.h"
#include "dofla/core/stopwatch.h"
#include "dofla/data/tasks/last_words.h"
#include "dofla/distributed/agreement.h"
#include "dofla/evaluate/tasks.h"
#include "dofla/fidelity/compare.h"
#include "dofla/linear/linear_model.h"

namespace dofla {
namespace {

// Cut to these keys, if there are any.
Transformer load_model(const Checkpoint& checkpoint, const std::optional<ExactKeys>& exact,
                       const Device& device) {
  if (!exact) return load_model(checkpoint, device);
  if (is_linear(checkpoint))
    fail("{}: has its own kind of attention; exact keys alone are for a softmax model",
         checkpoint.folder().string());
  return make_linear_model(checkpoint, exact_keys_alone(checkpoint.config().layers, *exact),
                           device);
}

struct ReadTask {
  TaskEvaluation evaluation;
  std::vector<Question> questions;
};

ReadTask read_task(const std::string& name, const TaskSelection& selection) {
  const Task& task = find_task(name);
  const TaskSplit& split =
      find_split(task, selection.split.empty() ? task.evaluated : selection.split);
  ReadTask read = {{.task = &task, .split = &split},
                   evenly_spread(read_questions(task, split, selection.data), selection.limit)};
  read.evaluation.chance = chance(read.questions);
  for (const Question& question : read.questions)
    if (selection.letters && question.options.empty())
      fail(
          "{}: has no labelled options to ask for by letters; docs/tasks.md lists the tasks that "
          "do",
          task.name);
  return read;
}

void answer(const Transformer& model, const Tokenizer& tokenizer, const TaskSelection& selection,
            const Progress& progress, const Group& group, ReadTask& task) {
  TaskEvaluation& evaluation = task.evaluation;
  const Progress named = [&](ProgressUpdate update) {
    update.stage = evaluation.task->name;
    report(progress, update);
  };
  if (selection.letters) {
    evaluation.lettered =
        evaluate_letters(model, tokenizer, task.questions, *selection.letters, named, group);
    return;
  }
  const auto encoded = encode_questions(task.questions, tokenizer, model.config());
  evaluation.result = evaluate_task(model, encoded, named, group);
  if (evaluation.result.not_finite == evaluation.result.questions)
    require_finite_scores(model, encoded.front());
}

template <class Value>
std::vector<Value> each_once(std::vector<Value> values) {
  std::ranges::sort(values);
  values.erase(std::unique(values.begin(), values.end()), values.end());
  return values;
}

}  // namespace

TextEvaluation evaluate_text(const Checkpoint& checkpoint, const std::optional<ExactKeys>& exact,
                             const Windows& text, const Device& device, const Progress& progress,
                             const Group& group) {
  require_same_weights(group, checkpoint);
  const Transformer model = load_model(checkpoint, exact, device);
  const Stopwatch whole;
  TextEvaluation evaluation = {
      evaluate_next_token(model, text.next, text.predicted_tokens, progress, group)};
  evaluation.seconds = whole.seconds();
  checkpoint.require_unchanged();
  return evaluation;
}

TeacherEvaluation evaluate_beside_teacher(const Checkpoint& checkpoint, const Checkpoint& teacher,
                                          const Windows& text, const Device& device,
                                          const Progress& progress, const Group& group) {
  require_same_vocabulary(checkpoint, teacher);
  require_same_weights(group, checkpoint);
  require_same_weights(group, teacher);
  Transformer student = load_model(checkpoint, device), original = load_model(teacher, device);
  const Compared compared =
      compare(original, {&student}, text.next, text.predicted_tokens, progress, group).front();
  TeacherEvaluation evaluation = {.divergence = divergence_of(compared.windows),
                                  .attention_error = layer_errors(compared),
                                  .controls = {}};
  const FeatureSet features = is_linear(checkpoint) ? load_features(checkpoint) : FeatureSet();
  evaluation.state_bytes = state_bytes(features, checkpoint.config());
  if (is_linear(checkpoint)) {
    text.rewind();
    evaluation.controls = evaluate_controls(student, original, features, text.next,
                                            text.predicted_tokens, progress, group);
  }
  checkpoint.require_unchanged();
  teacher.require_unchanged();
  return evaluation;
}

TaskEvaluations evaluate_tasks(const fs::path& model_folder, const TaskSelection& selection,
                               const Device& device, const Progress& progress, const Group& group) {
  std::vector<ReadTask> tasks;
  for (const std::string& name : selection.names) tasks.push_back(read_task(name, selection));
  const Checkpoint checkpoint(model_folder);
  require_same_weights(group, checkpoint);
  const Tokenizer tokenizer = Tokenizer::load(checkpoint.folder());
  const Transformer model = load_model(checkpoint, device);
  const Stopwatch whole;
  TaskEvaluations evaluations;
  for (ReadTask& task : tasks) {
    answer(model, tokenizer, selection, progress, group, task);
    evaluations.questions += std::ssize(task.questions);
    evaluations.tasks.push_back(task.evaluation);
  }
  evaluations.seconds = whole.seconds();
  checkpoint.require_unchanged();
  return evaluations;
}

LastWords evaluate_last_words(const fs::path& model_folder, const fs::path& file,
                              const Device& device, const Progress& progress, const Group& group) {
  const std::vector<Question> texts = read_last_words(file);
  const Checkpoint checkpoint(model_folder);
  require_same_weights(group, checkpoint);
  const Tokenizer tokenizer = Tokenizer::load(checkpoint.folder());
  const Transformer model = load_model(checkpoint, device);
  const LastWords result = evaluate_last_words(
      model, encode_questions(texts, tokenizer, model.config()), progress, group);
  checkpoint.require_unchanged();
  return result;
}

RecallEvaluation evaluate_recall(const Checkpoint& checkpoint, const Checkpoint* teacher,
                                 const std::function<TokenIds(int64_t most_tokens)>& running_text,
                                 const RecallOptions& options, const Device& device,
                                 const Progress& progress, const Group& group) {
  require_same_weights(group, checkpoint);
  if (teacher != nullptr) require_same_weights(group, *teacher);
  const std::vector<double> depths = each_once(options.depths);
  const Tokenizer tokenizer = Tokenizer::load(checkpoint.folder());
  const Transformer model = load_model(checkpoint, options.exact, device);
  RecallEvaluation evaluation = {
      .distances = each_once(options.distances), .report = {}, .most_tokens = model.most_tokens()};
  const int64_t longest = longest_recall(model, evaluation.distances);
  const RecallPrompts prompts(tokenizer,
                              running_text(options.questions * RecallPrompts::tokens(longest)),
                              options.questions, longest, options.seed);
  const auto measure = [&](const Transformer& which) {
    return evaluate_recall(which, tokenizer, prompts, evaluation.distances, depths, progress,
                           group);
  };
  if (teacher != nullptr) {
    require_same_vocabulary(checkpoint, *teacher);
    const Transformer other = load_model(*teacher, device);
    evaluation.teacher = measure(other);
    evaluation.teacher_most_tokens = other.most_tokens();
    teacher->require_unchanged();
  }
  evaluation.report = measure(model);
  checkpoint.require_unchanged();
  return evaluation;
}

}  // namespace dofla
