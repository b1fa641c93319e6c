#include "cli/training_run.h"

#include "cli/interruption.h"
#include "cli/invocation.h"
#include "cli/output.h"
#include "dofla/core/error.h"
#include "dofla/core/file_lock.h"
#include "dofla/core/progress.h"
#include "dofla/report/training_log.h"

namespace dofla::cli {

Json provenance(const std::vector<std::string>& data) {
  return {{"command", command_line()}, {"data", data}};
}

void TrainingRun::add_out(CLI::App& app) {
  dofla::cli::add_out(app, out_, "folder for the new model; must not exist", "DIR")->required();
}

void TrainingRun::add(CLI::App& app, const char* seed_help, const char* checkpoints,
                      const char* recompute_help) {
  add_number(app, "--seed", seed_, seed_help, "N", seed_number())->capture_default_str();
  app.add_flag("--recompute", recompute_, recompute_help);
  const HelpSection section(app, "Log and checkpoints");
  app.add_option("--log", log_,
                 "file for the loss of every step, its layers, learning rate and time;\n"
                 "ends in .csv or .jsonl")
      ->type_name("F");
  add_number(app, "--checkpoint-every", checkpoint_every_,
             fmt::format("steps between two checkpoints (default: {})", checkpoints).c_str(), "N",
             whole_from(1));
  add_number(app, "--checkpoint-minutes", checkpoint_minutes_,
             "time after which there is another one, whatever the steps", "M",
             real_between(0.001, 1e6))
      ->capture_default_str();
  app.add_flag("--resume", resume_, "continue the interrupted run (same options and device)");
}

void TrainingRun::guard(const Group& group,
                        const std::function<void(const std::atomic<bool>* stop)>& work) const {
  const StopFlag stop;
  if (!group.is_first()) return work(stop.get());
  const std::string lock_file = out_ + ".lock";
  prepare_place(lock_file);
  const FileLock lock(lock_file, out_);
  check_places();
  try {
    work(stop.get());
  } catch (const Cancelled& cancelled) {
    remark(fs::exists(file())
               ? fmt::format("{}; kept in {}: go on with the same command and --resume",
                             cancelled.what(), file().string())
               : fmt::format("{}; there was nothing to keep yet", cancelled.what()));
    throw;
  }
}

void TrainingRun::write(const std::function<void()>& write_model) const {
  try {
    write_model();
  } catch (const Error& error) {
    if (!fs::exists(file())) throw;
    fail("{}; the training is kept in {}: go on with the same command and --resume", error.what(),
         file().string());
  }
  fs::remove(file());
}

Progress TrainingRun::logged(const Group& group, const Progress& progress) const {
  if (log_.empty() || !group.is_first()) return progress;
  const auto log = std::make_shared<TrainingLog>(log_, resume_);
  return progress.also_to([log](const ProgressUpdate& update) {
    if (update.training != nullptr) log->add(*update.training);
  });
}

void TrainingRun::check_places() const {
  prepare_new_folder(out_);
  if (!resume_ && fs::exists(file()))
    fail("{}: an unfinished run is kept there; go on with --resume, or remove it to start over",
         file().string());
  if (resume_ && !fs::exists(file())) fail("{}: nothing to resume: no such file", file().string());
  if (!log_.empty()) TrainingLog::check(log_, resume_);
}

}  // namespace dofla::cli
