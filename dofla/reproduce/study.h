// A suite with everything that its runs share: the teacher, the text, a device and a folder.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "dofla/pipeline.h"
#include "dofla/reproduce/suite.h"

namespace dofla {

struct Study {
  Suite suite;
  Checkpoint teacher;
  std::string teacher_name;  // that of its folder
  DistillText text;
  TextRemarks remarks;  // on it
  Device device;
  fs::path folder;  // where everything is written: runs/, features/, training/

  // "wiki-mini, gpt2 with 6 layers of 4 heads of size 64"
  std::string teacher_line() const;
  int64_t feature_heads(FeatureMap map) const;  // heads of a layer that have features
};

// Reads teacher and text, which the suite must name by now; tokens are kept as
// TextSource::token_cache says. Throws Error if they do not fit the suite.
Study open_study(const Suite& suite, const fs::path& folder, const Device& device,
                 const Progress& progress = {}, const fs::path& token_cache = {});

// Where the training of a run is kept until it is over. The name follows from the settings, so that
// a file of that name is a training to go on with. Makes the folder.
fs::path training_file(const Study& study, const std::string& run, const Json& settings);

// One student of the matrix.
struct Student {
  int64_t cost = 0;
  FeatureMap map = FeatureMap::kPrf;
  PlanStrategy strategy = PlanStrategy::kFix;  // the baselines have the same M everywhere
  std::optional<LossKind> loss;                // not of baselines
  uint64_t seed = 0;
  bool equal_time = false;  // steps after EqualTime, not those of the suite

  bool baseline() const { return !takes_init(map); }
  std::string name() const;  // "c64-dof-softmax-s1", "c64-performer-s1", "…-equal-time"
  std::string_view loss_or_map() const {
    return baseline() ? dofla::name(map) : dofla::name(loss.value());
  }
};

// In the order in which they are run: seed by seed, so that an early end leaves whole tables.
std::vector<Student> students(const Suite& suite);

}  // namespace dofla
