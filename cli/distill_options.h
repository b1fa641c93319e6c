// The options of dofla distill, and the job that they ask for.
#pragma once

#include "cli/command.h"
#include "cli/compare_page.h"
#include "cli/device_option.h"
#include "cli/exact_keys_option.h"
#include "cli/lambda_option.h"
#include "cli/training_run.h"
#include "dofla/pipeline.h"

namespace dofla::cli {

struct DistillArguments {
  ModelArgument model;
  DeviceOption device;
  TrainingRun training;
  TextArguments text;
  LambdaOption lambda;
  std::string plan, start;
  AllocateOptions allocate;
  ExactKeysOption exact;
  KeepOption keep;
  std::optional<PlanStrategy> strategy;
  std::optional<Coordinates> coordinates;
  std::optional<int64_t> samples;
  RecipeOptions recipe;
  int64_t batch = DistillOptions().batch;
  int64_t held_out = kHeldOut;
  ComparePage compare;
  bool dry_run = false;
  bool json = false;
};

// Adds what the student is to be and how it is trained; model, text and output are added before.
void add_distill_options(CLI::App& app, DistillArguments& options);

// Throws std::invalid_argument on options that contradict each other, and UsageError.
DistillOptions make_job(const DistillArguments& options);

}  // namespace dofla::cli
