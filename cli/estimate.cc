#include "dofla/pipeline/estimate.h"

#include <memory>

#include "cli/choice_option.h"
#include "cli/command.h"
#include "cli/memory_option.h"
#include "cli/output.h"
#include "cli/usage_error.h"
#include "dofla/model/operations.h"

namespace dofla::cli {
namespace {

struct EstimateArguments {
  ModelArgument model;
  EstimateOptions options;
  std::optional<int64_t> device_memory;
  double tflops = Machine().products / 1e12;
  int64_t tokens = 20'000'000;
  bool json = false;
};

// config.json itself, or the folder that holds it. Weights are not looked at.
ModelConfig read_shape(fs::path place) {
  if (fs::is_directory(place)) place /= "config.json";
  return read_config(load_json(place), place.string());
}

std::string duration(double seconds) {
  if (seconds < 90) return fmt::format("{:.0f} s", seconds);
  if (seconds < 90 * 60) return fmt::format("{:.0f} min", seconds / 60);
  if (seconds < 72 * 3600) return fmt::format("{:.1f} h", seconds / 3600);
  return fmt::format("{:.1f} days", seconds / 86400);
}

std::string bytes_text(double bytes) {
  return with_bytes_unit(static_cast<int64_t>(bytes));
}

std::string table(const ModelConfig& config, const EstimateArguments& arguments,
                  const std::vector<StageEstimate>& stages) {
  const Machine& machine = arguments.options.machine;
  std::string text = fmt::format(
      "model      {} layers of width {}, {:.2f} billion weights, {} in 16 bits\n"
      "machine    {} of {:g} TFLOP/s and {}\n"
      "text       {} tokens in windows of {}, {} a step; {} features a head\n\n"
      "{:<38} {:>9} {:>10} {:>12}\n",
      config.layers, grouped(config.width), matrix_weights(config) / 1e9,
      bytes_text(2 * matrix_weights(config)), counted(machine.gpus, "GPU"), arguments.tflops,
      bytes_text(machine.memory), grouped(arguments.tokens), grouped(arguments.options.length),
      arguments.options.batch, arguments.options.features, "", "tokens/s", "time", "memory");
  for (const StageEstimate& stage : stages)
    text += fmt::format("{:<38} {:>9} {:>10} {:>12}{}\n", stage.stage,
                        grouped(static_cast<int64_t>(stage.tokens_per_second)),
                        duration(stage.seconds(static_cast<double>(arguments.tokens))),
                        bytes_text(stage.bytes), stage.fits(machine) ? "" : "  does not fit");
  return text;
}

void run(EstimateArguments arguments) {
  Machine& machine = arguments.options.machine;
  machine.products = arguments.tflops * 1e12;
  if (arguments.device_memory) machine.memory = static_cast<double>(*arguments.device_memory);
  const ModelConfig config = read_shape(arguments.model.folder());
  const auto stages = from_arguments([&] { return estimate_stages(config, arguments.options); });
  if (!arguments.json) return print(table(config, arguments, stages));
  OrderedJson json = {{"weights", matrix_weights(config)}, {"stages", OrderedJson::array()}};
  for (const StageEstimate& stage : stages)
    json["stages"].push_back({{"stage", stage.stage},
                              {"tokens_per_second", stage.tokens_per_second},
                              {"seconds", stage.seconds(static_cast<double>(arguments.tokens))},
                              {"bytes", stage.bytes},
                              {"fits", stage.fits(machine)}});
  print_json(json);
}

}  // namespace

Command add_estimate(CLI::App& program) {
  CLI::App* app = program.add_subcommand(
      "estimate", "Say what training would take on GPUs: time and memory, from config.json alone");
  const auto arguments = std::make_shared<EstimateArguments>();
  EstimateOptions& options = arguments->options;
  arguments->model.add(*app);
  add_number(*app, "--tokens", arguments->tokens, "of the text, all passes over it counted", "N",
             whole_between(1, int64_t{1} << 50))
      ->capture_default_str();
  add_number(*app, "--length", options.length, "tokens of a window", "T", whole_between(1, 1 << 24))
      ->capture_default_str();
  add_number(*app, "--batch", options.batch, "windows a step, shared by the GPUs", "B",
             whole_between(1, 1 << 20))
      ->capture_default_str();
  add_number(*app, "--cost", options.features, "features a head", "M", whole_between(1, 1 << 20))
      ->capture_default_str();
  add_choice(*app, "--moments", options.moments, "of finetune: bf16 takes half the memory");
  add_number(*app, "--gpus", options.machine.gpus,
             "GPUs, each with the whole model and a share of the moments", "N",
             whole_between(1, 1 << 20))
      ->capture_default_str();
  add_number(*app, "--tflops", arguments->tflops,
             "of a GPU: a large bf16 product as measured there (an H200's)", "F",
             real_between(1e-3, 1e6))
      ->capture_default_str();
  add_memory(*app, arguments->device_memory, "of a GPU (default: 141GB, an H200's)",
             "--device-memory");
  add_json_flag(*app, arguments->json);
  app->footer(
      "MODEL may be a folder or a config.json; weights are not read, and no GPU is needed here.\n"
      "The times are the products that a stage must compute, at the shares of a GPU's peak that\n"
      "were measured on an H200: they predict the runs that were measured within a quarter\n"
      "(docs/scale.md). With exact keys a step of the softmax or kl loss takes up to half as\n"
      "long again; models much smaller than GPT-2 are bound by launches. Reading text, measuring\n"
      "sensitivity and comparing come on top. For this machine distill --dry-run measures a "
      "step.\n\n"
      "Example:\n  dofla estimate path/to/llama-8b/config.json --tokens 100000000 --gpus 8 --batch "
      "64\n\n"
      "JSON:\n  {\"weights\", \"stages\": [{\"stage\", \"tokens_per_second\", \"seconds\", "
      "\"bytes\", \"fits\"}]}");
  return {app, [arguments] { run(*arguments); }};
}

}  // namespace dofla::cli
