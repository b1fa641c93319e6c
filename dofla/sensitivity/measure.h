// The sensitivity stage: a teacher and its training text in, a SensitivityTable out.
#pragma once

#include "dofla/checkpoint/checkpoint.h"
#include "dofla/core/progress.h"
#include "dofla/data/batches.h"
#include "dofla/distill/recipe.h"
#include "dofla/distributed/group.h"
#include "dofla/ops/exact_keys.h"
#include "dofla/sensitivity/sensitivity_table.h"

namespace dofla {

struct SensitivityOptions {
  FeatureMap features = make_recipe().features;
  std::vector<int64_t> ladder = {};  // M of the students; empty: ladder_around(cost)
  std::optional<int64_t> cost = {};  // left out: the head size
  int64_t steps = 12;                // that the students are trained
  int64_t batch = 2;                 // windows a step
  std::optional<int64_t> windows =
      {};                // that the loss is measured on; left out: 4 or all there are
  uint64_t seed = 0;     // of features and batches
  ExactKeys exact = {};  // that every layer keeps beside its features
  // Bytes a sequence that a plan is to spend (allocate_memory()). Left out, `exact.keys` and the
  // key ladder are then as many as the memory buys, the cost is kFeaturesBesideExactKeys, and what
  // features add is measured beside at most half a window of keys, so that some leave.
  std::optional<int64_t> memory = {};
  std::vector<int64_t> key_ladder = {};  // K of the caches without features; empty: none, with a
                                         // memory key_ladder_around() what it buys
  // Windows more that ask for what stood far back (recall_windows.h); left out: 2 with a memory,
  // else none. They follow those that the loss is measured on.
  std::optional<int64_t> recall_windows = {};
};

std::vector<int64_t> ladder_around(int64_t cost);  // C/16, C/4, C, 4C

// K/4, K/2, K, 2K, 4K, as far as a cache of this kind can have them and loses something of windows
// of so many tokens.
std::vector<int64_t> key_ladder_around(int64_t keys, const ExactKeys& kind, int64_t length);

// Trains a student of every M side by side with the defaults of distill (make_recipe()), all heads
// alike, and measures on the first windows of the text what their layers and heads add to the loss;
// where there is a key ladder, also what layers add with a cache of exact keys and no features.
// Throws Error if there are fewer windows than asked for or they are too short for the key ladder,
// or if the memory does not buy the least, and std::invalid_argument on options that
// make no sense. All ranks of a group have the table.
SensitivityTable measure_sensitivity(const Checkpoint& checkpoint, const WindowSet& text,
                                     const SensitivityOptions& options, const Device& device = {},
                                     const Progress& progress = {}, const Group& group = {});

// The same in these coordinates, which are chosen by the first windows of the text, as distill
// does.
SensitivityTable measure_sensitivity(const Checkpoint& checkpoint, Coordinates coordinates,
                                     const WindowSet& text, const SensitivityOptions& options,
                                     const Device& device = {}, const Progress& progress = {},
                                     const Group& group = {});

}  // namespace dofla
