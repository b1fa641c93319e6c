#include "dofla/pipeline/finetune.h"

#include <algorithm>
#include <limits>

#include "dofla/checkpoint/same_vocabulary.h"
#include "dofla/checkpoint/tokenizer.h"
#include "dofla/core/error.h"
#include "dofla/core/stopwatch.h"
#include "dofla/distributed/agreement.h"
#include "dofla/evaluate/next_token.h"
#include "dofla/evaluate/tasks.h"
#include "dofla/fidelity/compare.h"
#include "dofla/linear/linear_model.h"
#include "dofla/model/finite.h"
#include "dofla/model/rounded_weights.h"

namespace dofla {
namespace {

int64_t predicted_tokens(const WindowSet& windows) {
  return static_cast<int64_t>(windows.size()) * (windows.length() - 1);
}

// Of a model whose losses are not finite.
Judgement worst_judgement() {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  return {.score = -kInfinity, .loss = kInfinity, .answers = {}};
}

Judgement judge_by_loss(const Transformer& model, const WindowSet& held_out,
                        const Progress& progress, const Group& group) {
  try {
    const NextTokenLoss found =
        evaluate_next_token(model, each_of(held_out), predicted_tokens(held_out), progress, group);
    return {.score = -found.loss, .loss = found.loss, .answers = {}};
  } catch (const NotFinite&) {
    return worst_judgement();
  }
}

void require_vocabulary_of(const TeacherFile& teacher, const Checkpoint& student) {
  const int64_t found = teacher.header().vocabulary, expected = student.config().vocabulary;
  if (found != expected)
    fail("{}: a vocabulary of {}, that of {} has {}: a teacher has the tokens of its student",
         teacher.name(), found, student.folder().string(), expected);
}

std::optional<Divergence> divergence_from(const Transformer& teacher, const Transformer& model,
                                          const WindowSet& held_out, const Progress& progress,
                                          const Group& group) {
  try {
    return divergence_of(
        compare(teacher, {&model}, each_of(held_out), predicted_tokens(held_out), progress, group)
            .front()
            .windows);
  } catch (const NotFinite&) {
    return std::nullopt;
  }
}

// What a student is to lose is its distance from the teacher. The loss of the next token tells of
// it only where it is large: beside a close student it is the noise of a few windows.
Judgement judge_by_divergence(const Transformer& teacher, const Transformer& model,
                              const WindowSet& held_out, const Progress& progress,
                              const Group& group) {
  const auto found = divergence_from(teacher, model, held_out, progress, group);
  if (!found) return worst_judgement();
  return {.score = -found->kl, .loss = found->loss, .answers = {}};
}

Transformer load_to_train(const Checkpoint& checkpoint, const Device& device) {
  require_unrounded(checkpoint, "fine-tune");
  return load_model(checkpoint, device, DType::kF32);
}

// Weights that do not learn are still read from their file.
void require_unchanged_rest(const Checkpoint& checkpoint, const FinetuneOptions& options) {
  if (options.train != TrainedPart::kAll) checkpoint.require_unchanged();
}

}  // namespace

// docs/results/distill.md says what they gave. The next token alone is soon learnt by heart.
FinetuneOptions text_finetune_options(bool with_teacher) {
  FinetuneOptions options;
  options.epochs = with_teacher ? 3 : 1;
  options.batch = 8;
  options.learning_rate = with_teacher ? 2e-4 : 1e-4;
  options.feature_rate = with_teacher ? 20 : 1;
  options.checkpoint_every = 500;
  return options;
}

// docs/results/finetune.md has the rates that were tried on models of three widths.
FinetuneOptions close_student_options(int64_t width) {
  FinetuneOptions options = text_finetune_options(true);
  const double of_features = options.learning_rate * options.feature_rate;
  options.learning_rate = kCloseRate / static_cast<double>(width);
  options.feature_rate = of_features / options.learning_rate;
  return options;
}

bool has_exact_keys(const Checkpoint& model) {
  return is_linear(model) && !load_features(model).exact.empty();
}

FinetuneQuestions read_finetune_questions(const Task& task, const fs::path& data,
                                          int64_t train_limit, int64_t judged_limit) {
  const auto read = [&](const std::string& split, int64_t limit) {
    return evenly_spread(read_questions(task, find_split(task, split), data), limit);
  };
  return {&task, read(task.trained, train_limit), read(task.evaluated, judged_limit)};
}

Judge judge_by(const std::vector<EncodedQuestion>& questions, const Progress& progress,
               const Group& group) {
  return [&questions, progress, group](const Transformer& now) {
    const TaskResult answers = evaluate_task(now, questions, progress, group);
    return Judgement{.score = answers.acc.mean, .answers = answers};
  };
}

Finetuned finetune_on_text(const Checkpoint& checkpoint, const TextTeacher& teacher,
                           const DistillText& text, const Device& device, FinetuneOptions options,
                           const Progress& progress) {
  require(teacher.model == nullptr || teacher.file == nullptr,
          "finetune: a teacher is a model or a file, not both");
  options.part_tokens = part_tokens_for(device);
  options.run = {{"sequence_length", text.train.length()},
                 {"held_out_windows", text.held_out.size()},
                 {"held_out", fingerprint_of(text.held_out)}};
  std::optional<Transformer> imitated;
  if (teacher.model != nullptr) {
    const std::string folder = teacher.model->folder().string();
    require_same_vocabulary(checkpoint, *teacher.model);
    imitated.emplace(load_model(*teacher.model, device));
    require_same_weights(options.group, *teacher.model);
    options.run["teacher"] = folder;
  }
  if (teacher.file != nullptr) {
    const TeacherFileHeader& header = teacher.file->header();
    require_vocabulary_of(*teacher.file, checkpoint);
    teacher.file->require_windows(text.train);
    options.run["taught"] = header.about;
    options.run["taught"]["top"] = header.top;
  }
  Finetuned tuned = {.model = load_to_train(checkpoint, device), .result = {}};
  require_finite_loss(tuned.model, text.held_out.front());
  checkpoint.require_unchanged();
  const Judge judge = [&](const Transformer& now) {
    if (teacher.model != nullptr) teacher.model->require_unchanged();
    return imitated ? judge_by_divergence(*imitated, now, text.held_out, progress, options.group)
                    : judge_by_loss(now, text.held_out, progress, options.group);
  };
  const Stopwatch whole;
  const TrainingExamples examples = teacher.file != nullptr
                                        ? examples_of(text.train, *teacher.file)
                                        : examples_of(text.train, imitated ? &*imitated : nullptr);
  tuned.result = finetune(tuned.model, examples, options, judge, progress);
  tuned.seconds = whole.seconds();
  require_unchanged_rest(checkpoint, options);
  if (imitated)
    tuned.divergence =
        divergence_from(*imitated, tuned.model, text.held_out, progress, options.group);
  return tuned;
}

Finetuned finetune_on_task(const Checkpoint& checkpoint, const FinetuneQuestions& questions,
                           const Device& device, FinetuneOptions options,
                           const Progress& progress) {
  const Task& task = *questions.task;
  const Tokenizer tokenizer = Tokenizer::load(checkpoint.folder());
  Finetuned tuned = {.model = load_to_train(checkpoint, device), .result = {}};
  const auto train = encode_questions(questions.train, tokenizer, checkpoint.config());
  const auto judged = encode_questions(questions.judged, tokenizer, checkpoint.config());
  require_finite_scores(tuned.model, judged.front());
  options.part_tokens = part_tokens_for(device);
  options.run = {{"task", task.name},
                 {"split", task.trained},
                 {"evaluated", task.evaluated},
                 {"evaluated_questions", judged.size()}};
  tuned.truncated = std::ranges::count_if(train, &EncodedQuestion::truncated);
  const Stopwatch whole;
  // Ranks, each of which answers all questions, stop together and between two steps.
  const Progress judging = options.group.alone()
                               ? progress
                               : Progress([&](const ProgressUpdate& now) { progress.tell(now); });
  tuned.result = finetune(tuned.model, examples_of(train), options,
                          judge_by(judged, judging, options.group), progress);
  tuned.seconds = whole.seconds();
  require_unchanged_rest(checkpoint, options);
  return tuned;
}

void write_finetuned(const fs::path& folder, const Checkpoint& source, const Finetuned& tuned,
                     const Json& provenance) {
  Json about = tuned.result.run;
  about.update(provenance);
  NewFolder out(folder);
  write_trained_model(out.path(), source, tuned.model, about);
  out.commit();
}

}  // namespace dofla
