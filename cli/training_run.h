// What the commands that train have in common: where the new model goes, what a seed is of, and the
// file in which an unfinished run is kept.
#pragma once

#include <optional>
#include <string>

#include "cli/command.h"
#include "dofla/core/file.h"

namespace dofla::cli {

class TrainingRun {
 public:
  void add_out(CLI::App& app);
  // --seed, --checkpoint-every, --recompute and --resume; `checkpoints` says how often that is
  // where it is left out.
  void add(CLI::App& app, const char* seed_help, const char* checkpoints,
           const char* recompute_help);

  const std::string& out() const { return out_; }
  fs::path file() const { return out_ + ".training"; }

  // Throws Error if the model's place is taken, if there is nothing to resume, or if a run that
  // could be resumed would be overwritten.
  void check_places() const;

  // The options as DistillOptions and FinetuneOptions take them.
  template <class Job>
  void set(Job& job) const {
    job.checkpoint = file();
    job.seed = seed_;
    job.checkpoint_every = checkpoint_every_.value_or(job.checkpoint_every);
    job.recompute = recompute_;
    job.resume = resume_;
  }

 private:
  std::string out_;
  uint64_t seed_ = 0;
  std::optional<int64_t> checkpoint_every_;
  bool recompute_ = false;
  bool resume_ = false;
};

}  // namespace dofla::cli
