// The whole way from a softmax teacher to a linear student: read this first.
//
//   Checkpoint → Model → (q, k) → DofTable → DimensionPlan → FeatureSet → LinearModel → Report
#pragma once

#include <optional>
#include <vector>

#include "dofla/core/progress.h"
#include "dofla/data/batches.h"
#include "dofla/distill/feature_init.h"
#include "dofla/distill/recipe.h"
#include "dofla/distill/train.h"
#include "dofla/dof/measure.h"
#include "dofla/evaluate/compare.h"
#include "dofla/plan/allocate.h"

namespace dofla {

struct DistillText {
  std::vector<TokenIds> train;     // equally long
  std::vector<TokenIds> held_out;  // never trained on: what the student is judged by
};

// The windows that are as long as the first, the last `held_out` of them apart. Throws Error if
// nothing is left to train on.
DistillText split_held_out(std::vector<TokenIds> windows, int64_t held_out);

struct DistillOptions {
  std::optional<DimensionPlan> plan;  // given, or else measured and allocated
  std::optional<FeatureSet> start;    // features of that plan to go on from; else they are drawn
  AllocateOptions allocate;
  DofOptions dof;
  int64_t dof_sequences = 16;  // of the training text, for the degrees of freedom
  FeatureOptions features = {.map = FeatureMap::kPrf, .init = FeatureInit::kPairs, .samples = {}};
  FeatureLossOptions loss;  // of the layerwise objective
  bool direct = false;      // instead: the next-token loss of the whole student
  bool recompute = false;   // with `direct`: less memory for more time
  TrainOptions train;
  int64_t batch = 8;
  uint64_t seed = 0;  // of features and batches
  Device device;

  fs::path checkpoint;              // where the training is kept; empty: nowhere
  int64_t checkpoint_every = 50;    // steps
  double checkpoint_seconds = 300;  // after so many there is one, whatever the steps
  bool resume = false;              // go on from the checkpoint
  Json run;                         // what a resume must agree with

  void follow(const Recipe& recipe);  // sets loss.kind, direct and train
};

// What the result of a distillation depends on, as one flat object: for DistillOptions::run, and to
// say in a file how a student was made.
Json distill_settings(const Checkpoint& checkpoint, const DistillText& text,
                      const DistillOptions& options);

struct Distilled {
  std::optional<DofTable> dof;  // where it was measured
  DimensionPlan plan;
  FeatureSet features;
  TrainingHistory history;
  // What the losses of the history cannot fall below, a number a curve (docs/distill.md, "The
  // floor"); empty where that is 0.
  std::vector<double> floor;
  Comparison comparison;     // on the held-out text
  double train_seconds = 0;  // of this run
  int64_t train_tokens = 0;  // of this run
};

// Asked to stop through `progress`, it finishes the step, writes a checkpoint and throws Cancelled.
Distilled distill(const Checkpoint& checkpoint, const DistillText& text,
                  const DistillOptions& options, const Progress& progress = {});

// The seconds that one training step takes, measured on the spot: for an estimate beforehand.
double measure_step_seconds(const Checkpoint& checkpoint, const DistillText& text,
                            const DistillOptions& options);

}  // namespace dofla
