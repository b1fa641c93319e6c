// The training of features, whatever the objective: Adam on gradients scaled to norm 1 head by
// head, learning rates that fall linearly to 0, steps that are not finite left out and remembered.
#pragma once

#include <cstdint>
#include <vector>

#include "dofla/core/file.h"
#include "dofla/core/json.h"
#include "dofla/core/progress.h"
#include "dofla/distill/objective.h"
#include "dofla/ops/feature_step.h"

namespace dofla {

struct TrainOptions {
  int64_t steps = 0;   // the learning rates fall linearly to 0 over them
  double lr_z = 0.05;  // of directions: z and, of untied features, u
  double lr_alpha = 0.2;
  double lr_norm = 0;  // of η, of untied features
};

// A step of one layer that was left out because a loss or gradient was not finite.
struct SkippedStep {
  int64_t step = 0;
  int64_t layer = 0;
  int64_t head = 0;  // the first one with features that was not finite
};

struct TrainingHistory {
  // [steps, layers], the mean over heads; [steps, 1] where all layers have the same loss
  std::vector<std::vector<double>> loss;
  std::vector<SkippedStep> skipped;
};

class FeatureTrainer {
 public:
  FeatureTrainer(FeatureSet start, Objective objective, const TrainOptions& options);

  // One optimizer step of every layer on a batch of token ids [B, T]. Throws Error naming the layer
  // whose loss runs away; the features are then those before the step.
  void step(const Tensor& ids);

  int64_t steps_done() const { return static_cast<int64_t>(history_.loss.size()); }
  const FeatureSet& features() const { return features_; }
  const TrainingHistory& history() const { return history_; }
  TrainingStep last_step() const;  // without its times

  // Everything needed to go on as if never stopped, bit for bit. `run` says what run this is;
  // restoring refuses a file of another one and names the setting that differs.
  void save(const fs::path& path, const Json& run) const;
  void restore(const fs::path& path, const Json& run);

 private:
  void record(const Tensor& losses,  // [layers, H] in F64
              const Tensor& norms);  // [layers, heads with features] in F64
  void stop_if_diverged(size_t curve) const;

  size_t curves() const { return objective_.per_layer ? features_.layers.size() : 1; }

  Objective objective_;
  TrainOptions options_;
  FeatureSet features_;
  std::vector<FeatureMoments> moments_;
  TrainingHistory history_;
};

}  // namespace dofla
