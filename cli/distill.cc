#include <chrono>
#include <memory>

#include <sys/resource.h>

#include "cli/command.h"
#include "cli/distill_options.h"
#include "cli/distill_report.h"
#include "cli/output.h"
#include "cli/progress_bar.h"
#include "cli/usage_error.h"
#include "dofla/core/error.h"
#include "dofla/fidelity/fidelity_json.h"
#include "dofla/linear/linear_model.h"
#include "dofla/pipeline/student.h"

namespace dofla::cli {
namespace {

DistillText read_text(const DistillArguments& options, const Checkpoint& checkpoint,
                      const Progress& progress) {
  return split_held_out(options.text.read(checkpoint, progress), options.held_out);
}

void estimate(const DistillArguments& options, const Checkpoint& checkpoint,
              const DistillText& text, const DistillOptions& job) {
  const double step = job.recipe.train.steps == 0 ? 0 : measure_step_seconds(checkpoint, text, job);
  rusage usage = {};
  getrusage(RUSAGE_SELF, &usage);
  const double seconds = step * static_cast<double>(job.recipe.train.steps);
  const int64_t bytes = int64_t{usage.ru_maxrss} * 1024;
  if (options.json)
    return print_json({{"dry_run", true},
                       {"steps", job.recipe.train.steps},
                       {"step_seconds", step},
                       {"seconds", seconds},
                       {"peak_bytes", bytes}});
  print(
      fmt::format("steps          {} of {} x {} tokens\n"
                  "a step         {:.2f} s\n"
                  "training       about {:.0f} s\n"
                  "memory         about {}\n",
                  job.recipe.train.steps, job.batch, text.train.length(), step, seconds,
                  with_bytes_unit(bytes)));
}

void run(const DistillArguments& options, const Checkpoint& checkpoint, const DistillOptions& job,
         const std::atomic<bool>* stop) {
  const auto start = std::chrono::steady_clock::now();
  Distilled result;
  DistillText text;
  {
    ProgressBar bar(stop);
    text = read_text(options, checkpoint, bar.progress());
    if (options.dry_run) return estimate(options, checkpoint, text, job);
    result = distill(checkpoint, text, job, options.training.logged(job.group, bar.progress()));
  }
  if (!job.group.is_first()) return;
  options.training.write([&] {
    write_student(options.training.out(), checkpoint, result, provenance(options.text.files()));
  });
  const double seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  for (const auto& [layer, head] : result.features.coordinates.unvaried)
    remark(fmt::format(
        "layer {}, key head {}: its queries or keys do not vary; it keeps its own coordinates",
        layer + 1, head + 1));
  const std::optional<Verdict> verdict =
      options.compare.write(checkpoint, options.training.out(), text.held_out, job.device, stop);
  if (options.json) {
    OrderedJson json = distill_json(result, seconds);
    if (verdict) json["verdict"] = dofla::to_json(*verdict);
    return print_json(json);
  }
  print(distill_table(checkpoint, result, seconds) + verdict_lines(verdict, 15));
  remark(fmt::format("{0}: model, {1}plan.json and report.html; open {0}/report.html",
                     options.training.out(),
                     result.dof           ? "dof.json, "
                     : result.sensitivity ? "sensitivity.json, "
                                          : ""));
}

void run(const DistillArguments& options, const Group& group, const std::atomic<bool>* stop) {
  const Checkpoint checkpoint(options.model.folder());
  if (is_linear(checkpoint))
    fail("{}: is a linear-attention model already; distil its teacher",
         checkpoint.folder().string());
  DistillOptions job = from_arguments([&] { return make_job(options); });
  job.device = options.device.get(group);
  job.group = group;
  if (group.is_first() && !options.dry_run) options.compare.prepare(checkpoint);
  run(options, checkpoint, job, stop);
}

void run(const DistillArguments& options, const Group& group) {
  if (options.dry_run) return run(options, group, nullptr);
  options.training.guard(group, [&](const std::atomic<bool>* stop) { run(options, group, stop); });
}

}  // namespace

Command add_distill(CLI::App& program) {
  CLI::App* app = program.add_subcommand(
      "distill", "Turn a softmax model into a linear-attention model and compare the two");
  const auto options = std::make_shared<DistillArguments>();
  options->model.add(*app);
  options->device.add(*app);
  options->text.add(*app);
  options->training.add_out(*app);
  options->compare.add(*app);
  add_distill_options(*app, *options);
  add_json_flag(*app, options->json);
  app->footer(
      "In this order: the loss that each head adds when it is linear is measured, as by dofla\n"
      "sensitivity (with --strategy dof the degrees of freedom); a plan is made from it; features\n"
      "are trained layer by layer on the teacher's own queries and keys (with --loss direct and "
      "kl\n"
      "all together; with performer not at all); and the student is compared with its teacher on\n"
      "windows that it was not trained on. DIR is a complete model folder for inspect, evaluate,\n"
      "generate and the others, with plan.json, the measurements behind it, and report.html. "
      "While\n"
      "training, the run is kept in DIR.training: after an interruption of any kind, --resume "
      "with\n"
      "the same options continues it, on the same device, and gives the same features.\n\n"
      "Example:\n  dofla distill path/to/gpt2 --data wiki.jsonl.zst --cost 64 --out gpt2-linear\n"
      "  mpirun -n 4 dofla distill path/to/gpt2 --data wiki.jsonl.zst --cost 64 --out "
      "gpt2-linear\n\n"
      "JSON:\n  {\"teacher_loss\", \"student_loss\", \"kl\", \"same_top\", \"dims\", "
      "\"state_bytes\",\n"
      "   \"steps\", \"skipped_steps\", \"seconds\", \"tokens_per_second\", "
      "\"attention_error\",\n"
      "   \"controls\": [{\"name\", \"loss\", \"state_bytes\"}], \"fidelity\": as a text of dofla\n"
      "   compare, with --compare \"verdict\"}; losses in nats a token on held-out text,\n"
      "   tokens_per_second of training, controls as in dofla evaluate");
  return {.app = app, .share = [options](const Group& group) { run(*options, group); }};
}

}  // namespace dofla::cli
