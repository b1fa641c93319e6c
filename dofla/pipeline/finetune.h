// Fine-tuning from a model's folder to that of the trained model, on text or on a task.
#pragma once

#include <optional>
#include <vector>

#include "dofla/data/tasks/task.h"
#include "dofla/pipeline.h"
#include "dofla/train/finetune.h"

namespace dofla {

// What training on text has where nothing else is said; on a task it is paper_finetune_options().
FinetuneOptions text_finetune_options(bool with_teacher);

// The same of students that are close to their teacher already: matrices learn at kCloseRate / C,
// the slower the wider the model is, and features as fast as otherwise.
inline constexpr double kCloseRate = 5e-3;
FinetuneOptions close_student_options(int64_t width);

// Whether a student keeps exact keys beside its features: then it is that close.
bool has_exact_keys(const Checkpoint& model);

// What a model learns from and what it is judged by.
struct FinetuneQuestions {
  const Task* task = nullptr;
  std::vector<Question> train, judged;  // of the splits task->trained and task->evaluated
};

// So many of each, evenly spread; 0: all. Throws Error if a file is missing or malformed.
FinetuneQuestions read_finetune_questions(const Task& task, const fs::path& data,
                                          int64_t train_limit, int64_t judged_limit);

// By the accuracy of its answers. The questions must outlive the judge.
Judge judge_by(const std::vector<EncodedQuestion>& questions, const Progress& progress,
               const Group& group = {});

struct Finetuned {
  Transformer model;  // with the weights that are kept
  FinetuneResult result;
  int64_t truncated = 0;  // questions that were trained on, cut to fit the model's context
  // From its teacher on held-out text, where that is a model and no loss is other than finite.
  std::optional<Divergence> divergence = {};
  double seconds = 0;  // of training and judging
};

// Whom a student learns from: a model, a file of what one says of the text, or nobody.
struct TextTeacher {
  const Checkpoint* model = nullptr;
  const TeacherFile* file = nullptr;
};

// Next tokens of the text, or with a teacher its distribution of them; the best epoch is the one of
// the least loss on held-out text, with a model as its teacher of the least divergence from that.
// The teacher has the tokens of its student, a file is of the text that is trained on and what
// follows: Error otherwise. Options that name no part of the run (part_tokens, run) are filled in.
// All ranks of options.group; as finetune() for the rest.
Finetuned finetune_on_text(const Checkpoint& checkpoint, const TextTeacher& teacher,
                           const DistillText& text, const Device& device, FinetuneOptions options,
                           const Progress& progress = {});

Finetuned finetune_on_task(const Checkpoint& checkpoint, const FinetuneQuestions& questions,
                           const Device& device, FinetuneOptions options,
                           const Progress& progress = {});

// Makes a folder as write_trained_model() has it, which appears whole or not at all. `provenance`
// says what else is known of how the model was made and stands beside the run's settings.
void write_finetuned(const fs::path& folder, const Checkpoint& source, const Finetuned& tuned,
                     const Json& provenance = Json::object());

}  // namespace dofla
