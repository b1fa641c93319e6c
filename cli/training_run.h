// What the commands that train have in common: where the new model goes, what a seed is of, and the
// file in which an unfinished run is kept.
#pragma once

#include <atomic>
#include <functional>
#include <optional>
#include <string>

#include "cli/command.h"
#include "dofla/core/file.h"

namespace dofla::cli {

// Where a trained model comes from, for its config.json and page: {"command", "data"}. No part of
// what makes a run another one.
Json provenance(const std::vector<std::string>& data);

class TrainingRun {
 public:
  void add_out(CLI::App& app);
  // --seed, --log, --checkpoint-every, --checkpoint-minutes, --recompute and --resume;
  // `checkpoints` says how often that is where it is left out.
  void add(CLI::App& app, const char* seed_help, const char* checkpoints,
           const char* recompute_help);

  const std::string& out() const { return out_; }
  bool recompute() const { return recompute_; }
  fs::path file() const { return out_ + ".training"; }

  // Does the work with the model's place to itself and with a flag that stops it between two steps.
  // When it was stopped, says how to go on. Throws Error if the place is taken, if there is nothing
  // to resume, or if a run that could be resumed would be overwritten. Of several ranks the first
  // one sees to the place.
  void guard(const Group& group,
             const std::function<void(const std::atomic<bool>* stop)>& work) const;

  // Writes the trained model, after which the unfinished run is no longer kept. An Error says how
  // to go on.
  void write(const std::function<void()>& write_model) const;

  // The same progress; every step is also written to the file of --log.
  Progress logged(const Group& group, const Progress& progress) const;

  // The options as DistillOptions and FinetuneOptions take them.
  template <class Job>
  void set(Job& job) const {
    job.checkpoint = file();
    job.seed = seed_;
    job.checkpoint_every = checkpoint_every_.value_or(job.checkpoint_every);
    job.checkpoint_seconds = 60 * checkpoint_minutes_;
    job.resume = resume_;
  }

 private:
  void check_places() const;

  std::string out_, log_;
  uint64_t seed_ = 0;
  std::optional<int64_t> checkpoint_every_;
  double checkpoint_minutes_ = 5;
  bool recompute_ = false;
  bool resume_ = false;
};

}  // namespace dofla::cli
