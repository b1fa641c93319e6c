// The parts of `dofla finetune`: what all training has in common, and what it is on.
#pragma once

#include <optional>
#include <string>

#include "cli/command.h"
#include "cli/compare_page.h"
#include "cli/device_option.h"
#include "cli/output.h"
#include "cli/training_run.h"
#include "dofla/pipeline/finetune.h"

namespace dofla::cli {

struct FinetuneArguments {
  ModelArgument model;
  DeviceOption device;
  TrainingRun training;
  std::optional<TrainedPart> train;
  std::optional<int64_t> epochs, batch;
  std::optional<double> learning_rate, feature_rate;
  FinetuneOptions job;
  bool json = false;
  const std::atomic<bool>* stop = nullptr;  // TrainingRun::guard
  Group group = {};

  // The options as given, and where they are not those of `otherwise`.
  FinetuneOptions complete(const FinetuneOptions& otherwise) const;
};

// --task and what belongs to it.
class FinetuneTask {
 public:
  void add(CLI::App& app);
  bool given() const { return !task_.empty(); }
  void run(const FinetuneArguments& arguments) const;

 private:
  std::string task_, data_;
  int64_t limit_ = 0, evaluate_limit_ = 0;  // 0: all questions
};

// --data and what belongs to it.
class FinetuneText {
 public:
  void add(CLI::App& app);
  void run(const FinetuneArguments& arguments) const;

 private:
  TextArguments text_;
  ComparePage compare_;
  std::string teacher_, taught_;
  int64_t held_out_ = kHeldOut;
};

// Writes the model's folder, once the run is over, and forgets the run; `data` are the files that
// were read.
void write_model(const FinetuneArguments& arguments, const Checkpoint& checkpoint,
                 const Finetuned& tuned, const std::vector<std::string>& data);

// How a table names the beginning (0) and the epochs.
std::string epoch_label(const FinetuneResult& result, int64_t epoch);

// What a table ends with.
void print_skipped(const FinetuneResult& result);
void remark_on_kept(const FinetuneArguments& arguments, const Finetuned& tuned);

}  // namespace dofla::cli
