// Fine-tuning on a multiple-choice task or on text, of everything that a model has, weights and, in
// a linear model, features, or of a part of it. docs/finetune.md says what the choices are.
#pragma once

#include <string_view>
#include <vector>

#include "dofla/core/json.h"
#include "dofla/core/names.h"
#include "dofla/core/progress.h"
#include "dofla/data/tasks/task_result.h"
#include "dofla/distributed/group.h"
#include "dofla/train/optimizer.h"
#include "dofla/train/training_examples.h"

namespace dofla {

enum class TrainedPart {
  kFeatures,   // of linear attention
  kAttention,  // these, the projections around attention with their biases, and q/k norms
  kAll,
};

template <>
struct Names<TrainedPart> {
  static constexpr std::string_view kWhat = "part of a model";
  static constexpr std::array kAll = {Name{TrainedPart::kFeatures, "features"},
                                      Name{TrainedPart::kAttention, "attention"},
                                      Name{TrainedPart::kAll, "all"}};
};

struct FinetuneOptions {
  TrainedPart train = TrainedPart::kAll;
  int64_t lora =
      0;  // of kAttention: the rank of the updates of its matrices; 0: the matrices learn
  int64_t epochs = 3;
  int64_t batch = 64;           // questions or windows a step
  double learning_rate = 1e-4;  // falls linearly to 0
  double warmup = 0;            // the share of the steps over which it rises first, in [0, 1)
  double feature_rate = 1;      // times it is the learning rate of features
  double weight_decay = 0;      // of matrices
  double clip = 1;              // largest norm of the gradients; 0: any
  MomentType moments = MomentType::kFloat32;
  // Of the order of the examples, of what LoRA begins with, and of how moments are rounded.
  uint64_t seed = 0;
  // End with the weights of the best epoch, or with those from before training if all epochs are
  // worse; else with the last ones.
  bool keep_best = true;
  int64_t part_tokens = 2048;  // StepMemory: a GPU wants more at once, part_tokens_for()
  bool recompute = false;      // less memory for a third more time: Tape::recompute
  // Ranks that train together: each differentiates a share of a step's examples, holds the moments
  // of a share of the parameters and makes their step. The first one keeps the run.
  Group group = {};

  // Where the run is kept until it is over; empty: nowhere. `resume` goes on with the run there.
  fs::path checkpoint;
  int64_t checkpoint_every = 50;    // steps, and after every epoch
  double checkpoint_pause = 0;      // seconds that must have passed since the last one
  double checkpoint_seconds = 300;  // after so many there is another one, whatever the steps
  bool resume = false;
  // What else makes a run another one (the task, …). A run is resumed only if this is the same too.
  Json run = Json::object();
};

// The paper's settings for GPT-2, or for Pythia-1B where the family is gpt_neox, by the name of a
// task; Error if there is none of that name.
FinetuneOptions paper_finetune_options(std::string_view task, std::string_view family = "gpt2");

// How good a model is.
struct Judgement {
  // The higher the better: an accuracy, or with its sign turned a loss or a divergence.
  double score = 0;
  double loss = 0;     // of the next token, where it read a text
  TaskResult answers;  // where it answered questions
};

struct FinetuneResult {
  Judgement before;
  std::vector<Judgement> epochs;  // after each of them
  // The epoch whose weights the model has now, counted from 1; 0 if those from before training were
  // better than every epoch's and were kept.
  int64_t kept = 0;
  // Of every step: the mean over its examples, in nats; NaN where it was skipped because something
  // was not finite.
  std::vector<double> loss;

  // What the result depends on: the options, fingerprints of the model and the examples, and
  // FinetuneOptions::run. Goes well with a saved model.
  Json run;

  int64_t skipped() const;
  double epoch_loss(size_t epoch) const;  // the mean of its steps, without those that were skipped
  const Judgement& kept_judgement() const { return kept == 0 ? before : epochs.at(at(kept)); }
  bool is_worse() const { return kept_judgement().score < before.score; }

 private:
  static size_t at(int64_t epoch) { return static_cast<size_t>(epoch - 1); }
};

// Of the model as it is now. Evaluation is a later stage: the caller brings it.
using Judge = std::function<Judgement(const Transformer& model)>;

// Trains the model where it is (on a GPU it must have been loaded in F32; it computes with BF16
// copies then, unless Transformer::make_trainable was called for others) and leaves it with the
// weights of the epoch that is kept: the best score, of equal ones the first. Weights from before
// training are kept if they score higher than every epoch. On one device the same options give the
// same bits, however often the run was interrupted and with any number of threads; a run that began
// on another device is not resumed. Ranks get the same from the same number of them, and from
// another number the same within the rounding of sums. Throws Error if the loss runs away (the last
// checkpoint is then one from before), or if the checkpoint cannot be written, read or is of
// another run. Asked to stop through `progress`, it finishes the step, writes a checkpoint and
// throws Cancelled.
FinetuneResult finetune(Transformer& model, const TrainingExamples& examples,
                        const FinetuneOptions& options, const Judge& judge,
                        const Progress& progress = {});

}  // namespace dofla
