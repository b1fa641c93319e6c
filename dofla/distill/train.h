// Layerwise training: every layer learns its features from the teacher's own queries and keys, all
// layers in one pass, none waiting for another. Adam, on gradients scaled to norm 1 head by head.
#pragma once

#include <cstdint>
#include <vector>

#include "dofla/core/file.h"
#include "dofla/core/json.h"
#include "dofla/distill/feature_set.h"
#include "dofla/model/transformer.h"
#include "dofla/ops/feature_loss.h"
#include "dofla/ops/feature_step.h"

namespace dofla {

struct TrainOptions {
  FeatureLossOptions loss;
  int64_t steps = 0;  // the learning rates fall linearly to 0 over them
  double lr_z = 0.05;
  double lr_alpha = 0.2;
};

// A step of one layer that was left out because a loss or gradient was not finite.
struct SkippedStep {
  int64_t step = 0;
  int64_t layer = 0;
  int64_t head = 0;  // the first one that was not finite
};

struct TrainingHistory {
  std::vector<std::vector<double>> loss;  // [steps, layers], the mean over heads
  std::vector<SkippedStep> skipped;
};

class LayerwiseTrainer {
 public:
  LayerwiseTrainer(const Transformer& teacher, FeatureSet start, const TrainOptions& options);

  // One optimizer step of every layer on a batch of token ids [B, T]. Throws Error naming the
  // layer when its loss runs away; the features are then those before the step.
  void step(const Tensor& ids);

  int64_t steps_done() const { return static_cast<int64_t>(history_.loss.size()); }
  const FeatureSet& features() const { return features_; }
  const TrainingHistory& history() const { return history_; }

  // Everything needed to go on as if never stopped, bit for bit. `run` says what run this is;
  // restoring refuses a file of another one and names the setting that differs.
  void save(const fs::path& path, const Json& run) const;
  void restore(const fs::path& path, const Json& run);

 private:
  // What a step leaves of a layer, on the features' device until the step is over.
  struct LayerResult {
    Tensor loss, norms;  // [H] in F64
  };

  void record(const std::vector<LayerResult>& results);
  void stop_if_diverged(int64_t layer) const;

  const Transformer& teacher_;
  TrainOptions options_;
  FeatureSet features_;
  std::vector<FeatureMoments> moments_;
  TrainingHistory history_;
};

// What a training checkpoint says of its run, for a resume that does not repeat the options.
Json read_run(const fs::path& checkpoint);

}  // namespace dofla
