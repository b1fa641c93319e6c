// The whole way from a softmax teacher to a linear student: read this first.
//
//   Checkpoint → Model → (q, k) → DofTable → DimensionPlan → FeatureSet → LinearModel → Report
#pragma once

#include <optional>
#include <variant>
#include <vector>

#include "dofla/core/progress.h"
#include "dofla/data/batches.h"
#include "dofla/distill/recipe.h"
#include "dofla/distill/train.h"
#include "dofla/distributed/group.h"
#include "dofla/dof/measure.h"
#include "dofla/evaluate/controls.h"
#include "dofla/fidelity/divergence.h"
#include "dofla/pipeline/text.h"
#include "dofla/plan/allocate.h"
#include "dofla/sensitivity/measure.h"

namespace dofla {

// Windows at the end of a text that are kept to judge a student by, where nothing else is said.
inline constexpr int64_t kHeldOut = 16;

// Windows of the training text that choose what features weigh beside exact keys.
inline constexpr int64_t kCalibrationWindows = 16;

// The coordinates of queries and keys, where nothing else is said.
inline constexpr Coordinates kCoordinates = Coordinates::kBalanced;

struct DistillText {
  WindowSet train;
  WindowSet held_out;  // never trained on: what the student is judged by
};

// The last `held_out` windows apart. Throws Error if nothing is left to train on.
DistillText split_held_out(const WindowSet& windows, int64_t held_out = kHeldOut);

// A student to go on from: its features, and the plan that they are of.
struct StudentFeatures {
  DimensionPlan plan;
  FeatureSet features;
};
StudentFeatures load_student_features(const fs::path& folder);

struct DistillOptions {
  // How many features each head gets: allocated by degrees of freedom or measured sensitivity, as a
  // plan has it, or as a student has it, whose features are then trained further.
  std::variant<AllocateOptions, DimensionPlan, StudentFeatures> plan =
      AllocateOptions{.strategy = PlanStrategy::kSensitivity};
  // Of the queries and keys that degrees of freedom, features and losses see; left out:
  // kCoordinates, or those of the student to go on from.
  std::optional<Coordinates> coordinates = {};
  // Keys that every layer keeps exact beside its features; left out: as the plan has it. Where the
  // plan is made for a memory it chooses their number, and this one is 0.
  std::optional<ExactKeys> exact = {};
  // Layers that keep their softmax attention, counted from 0. What a plan spends goes to the
  // others.
  std::vector<int64_t> keep = {};
  // Or how many: those that add most to the loss, or have the largest degrees of freedom, whichever
  // the plan is made from.
  int64_t keep_count = 0;
  // Of the degrees of freedom that features are allocated by, and of the leverage scores that they
  // may be drawn with; left out: DofOptions().
  std::optional<DofOptions> dof = {};
  // Windows of the training text whose queries and keys give the coordinates, the degrees of
  // freedom and the first features.
  int64_t sequences = kDofSequences;
  Recipe recipe = make_recipe();
  int64_t batch = 8;  // windows a step
  uint64_t seed = 0;  // of samples, features and batches
  Device device = {};
  // Ranks that do this together, each with a share of the work. The first one keeps the training.
  Group group = {};

  fs::path checkpoint = {};         // where the training is kept; empty: nowhere
  int64_t checkpoint_every = 50;    // steps
  double checkpoint_seconds = 300;  // after so many there is one, whatever the steps
  bool resume = false;              // go on from the checkpoint
  Json about = Json::object();      // what else to record and to compare when a run is resumed

  const AllocateOptions* allocation() const;  // of the plan that is to be made; null if it is given
  Coordinates coordinates_kind() const;
  bool measures_dof() const;
  bool measures_sensitivity() const;
  bool draws_by_leverage() const;
  // Whether what trained features weigh beside exact keys is chosen in the end
  // (distill/calibrate.h). The losses of the whole student have chosen it by what counts more.
  bool calibrates() const;
};

// Throws std::invalid_argument on options that contradict each other.
void require_sound(const DistillOptions& options);

// What the result of a distillation depends on, as one flat object, and nothing that it does not
// depend on: a run is resumed only if it has the same, and a student's config.json tells it.
Json distill_settings(const Checkpoint& checkpoint, const DistillText& text,
                      const DistillOptions& options);

struct Distilled {
  std::optional<DofTable> dof;                  // where it was measured
  std::optional<SensitivityTable> sensitivity;  // where it was measured
  DimensionPlan plan;
  FeatureSet features;
  TrainingHistory history;
  // What the losses of the history cannot fall below, a number a curve (docs/distill.md, "The
  // floor"); empty where that is 0.
  std::vector<double> floor;
  Divergence comparison;                // with the teacher, on the held-out text
  std::vector<double> attention_error;  // there too, a number a layer: layer_errors()
  Controls controls;                    // there too: what the student has to beat
  // What every layer alone adds to the loss on held-out text, beside predicted_loss(); where the
  // sensitivity was measured.
  std::vector<double> added;
  double train_seconds = 0;  // of this run
  int64_t train_tokens = 0;  // of this run
  Json settings;             // distill_settings()

  int64_t steps() const { return static_cast<int64_t>(history.loss.size()); }
  double tokens_per_second() const;  // of training; 0 where nothing was trained
};

// Asked to stop through `progress`, it finishes the step, writes a checkpoint and throws Cancelled.
// Of a group all ranks call it with the same; the same number of them gives the same bits, another
// number the same within the rounding of sums. Throws Error if they were given something else.
Distilled distill(const Checkpoint& checkpoint, const DistillText& text,
                  const DistillOptions& options, const Progress& progress = {});

// The seconds that one training step takes, measured on the spot with the features that training
// starts with: for an estimate beforehand.
double measure_step_seconds(const Checkpoint& checkpoint, const DistillText& text,
                            const DistillOptions& options);

}  // namespace dofla
