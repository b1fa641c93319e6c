#include "cli/training_run.h"

#include "dofla/core/error.h"

namespace dofla::cli {

void TrainingRun::add_out(CLI::App& app) {
  dofla::cli::add_out(app, out_, "folder for the new model; must not exist", "DIR")->required();
}

void TrainingRun::add(CLI::App& app, const char* seed_help, const char* checkpoints,
                      const char* recompute_help) {
  add_number(app, "--seed", seed_, seed_help, "N", seed_number())->capture_default_str();
  add_number(app, "--checkpoint-every", checkpoint_every_,
             fmt::format("steps between two checkpoints (left out: {})", checkpoints).c_str(), "N",
             whole_from(1));
  app.add_flag("--recompute", recompute_, recompute_help);
  app.add_flag("--resume", resume_,
               "go on with the run that was cut short (same options and device)");
}

void TrainingRun::check_places() const {
  if (fs::exists(fs::symlink_status(out_)))
    fail("{}: exists already; choose another --out or remove it", out_);
  if (!resume_ && fs::exists(file()))
    fail("{}: an unfinished run is kept there; go on with --resume, or remove it to start over",
         file().string());
  prepare_place(out_);
  if (resume_ && !fs::exists(file())) fail("{}: nothing to resume: no such file", file().string());
}

}  // namespace dofla::cli
