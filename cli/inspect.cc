#include <memory>

#include "cli/command.h"
#include "cli/output.h"
#include "dofla/checkpoint/parameters.h"

namespace dofla::cli {
namespace {

struct Options {
  ModelArgument model;
  bool json = false;
};

void print_table(const ModelConfig& config, const Parameters& parameters, const fs::path& folder) {
  const std::string kv_heads = config.kv_heads == config.heads
                                   ? ""
                                   : fmt::format(", {} for keys and values", config.kv_heads);
  print(fmt::format(
      "{}\n"
      "  type        {}\n"
      "  layers      {}\n"
      "  heads       {} of size {}{}\n"
      "  width       {}\n"
      "  vocabulary  {}\n"
      "  context     {}\n"
      "  parameters  {}\n"
      "  weights     {}, {}\n",
      folder.string(), config.model_type, config.layers, config.heads, config.head_size, kv_heads,
      config.width, grouped(config.vocabulary), grouped(config.context), grouped(parameters.count),
      with_bytes_unit(parameters.bytes), name(parameters.dtype)));
}

void run(const Options& options) {
  const Checkpoint checkpoint(options.model.folder());
  const ModelConfig& config = checkpoint.config();
  const Parameters parameters = count_parameters(checkpoint);
  if (!options.json) return print_table(config, parameters, checkpoint.folder());
  print_json({{"model_type", config.model_type},
              {"layers", config.layers},
              {"heads", config.heads},
              {"kv_heads", config.kv_heads},
              {"head_size", config.head_size},
              {"width", config.width},
              {"vocabulary", config.vocabulary},
              {"context", config.context},
              {"parameters", parameters.count},
              {"bytes", parameters.bytes},
              {"dtype", name(parameters.dtype)}});
}

}  // namespace

Command add_inspect(CLI::App& program) {
  CLI::App* app = program.add_subcommand("inspect", "Show what a model is: its shape and size");
  const auto options = std::make_shared<Options>();
  options->model.add(*app);
  add_json_flag(*app, options->json);
  app->footer(
      "Reads config.json and the headers of the weight files, not the weights themselves. A tied\n"
      "output head counts once.\n\n"
      "Example:\n  dofla inspect path/to/gpt2 --json\n\n"
      "JSON:\n  {\"model_type\", \"layers\", \"heads\", \"kv_heads\", \"head_size\", \"width\",\n"
      "   \"vocabulary\", \"context\", \"parameters\", \"bytes\", \"dtype\"}");
  return {app, [options] { run(*options); }};
}

}  // namespace dofla::cli
