// What `dofla reproduce` runs: a matrix of strategies × losses × baselines × seeds on one teacher,
// as a JSON file says it. docs/reproduce.md lists the fields.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "dofla/core/file.h"
#include "dofla/pipeline.h"

namespace dofla {

// Multiple-choice tasks, for the teacher and for every student of the first seed.
struct SuiteTasks {
  std::vector<std::string> names;  // as in data/tasks
  fs::path data;                   // where their files are; empty: the tasks are left out
  bool finetune = true;            // and not only zero-shot
  int64_t limit = 0;               // questions that accuracies are of, evenly spread; 0: all
  int64_t train_limit = 0;         // questions to fine-tune on
  // Left out: the paper's for GPT-2, or for Pythia-1B if the teacher is a GPT-NeoX.
  std::optional<int64_t> epochs, batch;
  // Several: that with which the teacher is best, task by task, as the paper chooses.
  std::vector<double> learning_rates = {};
};

struct LearningRates {
  std::optional<double> z, alpha;  // left out: as make_recipe() has them
};

// Another run of `loss` for every cost, strategy and seed, with as many steps as its time allows
// when it has that of `as`.
struct EqualTime {
  LossKind loss, as;
};

struct Suite {
  fs::path teacher;             // a model's folder; empty: whatever the caller has built in
  std::vector<fs::path> data;   // text; empty: the same
  int64_t length = 0;           // tokens of a window; 0: the teacher's context
  int64_t held_out = kHeldOut;  // windows that students are judged by

  std::vector<int64_t> costs = {64};
  std::vector<PlanStrategy> strategies;
  std::vector<LossKind> losses;
  std::vector<FeatureMap> baselines;
  std::vector<uint64_t> seeds = {1};

  int64_t steps = make_recipe().train.steps;
  int64_t batch = DistillOptions().batch;  // windows a step
  FeatureMap features = FeatureMap::kPrf;  // of the students that are no baseline: the paper's
  Coordinates coordinates = kCoordinates;
  ExactKeys exact = {};  // that every layer of the students that are no baseline keeps
  FeatureInit init = make_recipe().init;
  PairMask mask = PairMask::kCausal;
  std::map<std::string, LearningRates> learning_rates;  // by loss, or "dijiang"
  std::optional<EqualTime> equal_time;

  DofOptions dof;
  int64_t dof_sequences = kDofSequences;  // windows that the degrees of freedom are measured on
  double power = 0.5;                     // of them, for dof-head

  std::optional<SuiteTasks> tasks;
  std::vector<int64_t> timing;  // tokens of the sequences to time inference at; empty: no timing
};

// Throws Error "file: field: …" on a field that does not exist, has the wrong type or an impossible
// value. Paths in the file are relative to its folder.
Suite read_suite(const fs::path& file);

}  // namespace dofla
