// The steps of a fine-tuning run, one at a time: what finetune() is made of.
#pragma once

#include "dofla/distributed/agreement.h"
#include "dofla/train/finetune.h"
#include "dofla/train/lora.h"
#include "dofla/train/optimizer.h"
#include "dofla/train/schedule.h"

namespace dofla {

class Finetuner {
 public:
  // Makes the model trainable. Model and examples must live as long as this object.
  Finetuner(Transformer& model, const TrainingExamples& examples, const FinetuneOptions& options);

  // All ranks: throws Error if they were given something else.
  void require_same_job() const { require_same(options_.group, run_); }

  int64_t steps() const { return schedule_.steps; }  // of the whole run
  int64_t steps_done() const { return static_cast<int64_t>(loss_.size()); }
  int64_t steps_per_epoch() const { return schedule_.steps / options_.epochs; }
  const std::vector<double>& loss() const { return loss_; }  // of every step
  bool at_epoch_end() const { return steps_done() > 0 && steps_done() % steps_per_epoch() == 0; }
  bool is_over() const { return steps_done() == steps() && !waits_for_judgement(); }

  // One optimizer step on the next examples. Every epoch takes all of them once, in an order of
  // its own; the last batch is what is left. Returns how many tokens they have. Throws Error if
  // the loss runs away.
  int64_t step();
  double learning_rate(int64_t step) const;  // counted from 0

  // Takes the judgement before the first step, then that after each epoch.
  bool waits_for_judgement() const;
  void take(const Judgement& judgement);

  // Whether the last steps went well enough to go on from them.
  bool healthy() const;

  // All ranks. Writes or reads options.checkpoint: everything needed to go on as if never stopped,
  // bit for bit.
  void save();
  void restore();

  // When the run is over: leaves the model with the weights that are kept.
  FinetuneResult finish();

 private:
  std::vector<int64_t> batch(int64_t step);
  std::vector<int64_t> own_part(const std::vector<int64_t>& examples) const;  // of this rank
  // The sum of their losses over all ranks; the gradients of `share` times those of this rank, for
  // the optimizer, which adds them up.
  double differentiate(const std::vector<int64_t>& examples, double share, NamedTensors& gradients);
  // The model, after every change of low-rank updates: what it computes with otherwise follows by
  // itself.
  void follow_optimizer();
  // The number of the judgement whose weights are kept: 0 is that before training.
  size_t kept() const;
  int64_t largest_checkpoint() const;  // bytes, all but exactly
  void restore_parameters(const Safetensors& file);
  int64_t patience() const;
  double recent_loss() const;
  double runaway_loss() const;
  void stop_if_diverged() const;

  Transformer& model_;
  const TrainingExamples& examples_;
  FinetuneOptions options_;
  Schedule schedule_;
  ShuffledPasses passes_;  // over the examples, one an epoch
  Json run_;
  Gradients gradients_;
  std::optional<LoraUpdates> lora_;
  Optimizer optimizer_;
  // The best parameters so far, if they are kept; on the CPU, which has more memory than a GPU.
  std::optional<Optimizer::Copy> best_;

  std::vector<double> loss_;           // as in FinetuneResult
  std::vector<Judgement> judgements_;  // before training, then after each epoch
  int64_t saved_step_ = 0;
};

}  // namespace dofla
