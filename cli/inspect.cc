#include <algorithm>
#include <cmath>
#include <memory>

#include <fmt/ranges.h>

#include "cli/command.h"
#include "cli/output.h"
#include "dofla/checkpoint/parameters.h"
#include "dofla/linear/linear_model.h"

namespace dofla::cli {
namespace {

struct InspectArguments {
  ModelArgument model;
  bool json = false;
};

std::string table(const ModelConfig& config, const Parameters& parameters, const fs::path& folder) {
  const std::string kv_heads = config.kv_heads == config.heads
                                   ? ""
                                   : fmt::format(", {} for keys and values", config.kv_heads);
  return fmt::format(
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
      with_bytes_unit(parameters.bytes), name(parameters.dtype));
}

// What a layer attends to: features, head by head where they differ, exact keys, or everything.
std::string layer_text(const std::vector<int64_t>& counts, const ExactKeys& exact) {
  if (counts.empty() && exact.empty()) return "softmax attention, with a cache that grows";
  std::string text;
  if (!exact.empty())
    text = fmt::format("{} exact keys ({}, {} sinks)",
                       exact.head_keys.empty() ? std::to_string(exact.keys)
                                               : fmt::format("{}", fmt::join(exact.head_keys, " ")),
                       name(exact.policy), exact.sinks);
  if (counts.empty()) return text + ", nothing of what leaves them";
  const bool same = std::equal(counts.begin() + 1, counts.end(), counts.begin());
  return text + (exact.empty() ? "" : " and features: ") +
         (same ? std::to_string(counts.front()) : fmt::format("{}", fmt::join(counts, " "))) +
         " a head";
}

std::string linear_lines(const FeatureSet& features, const ModelConfig& config) {
  const int64_t heads = feature_heads(features.map, config.heads, config.kv_heads);
  const std::string of = is_untied(features.map) ? fmt::format(" of {} key heads", heads) : "";
  std::string text =
      fmt::format("  attention   {}, {} features{}\n  state       {} a sequence\n",
                  features.exact.empty() ? "linear" : "exact keys and linear", name(features.map),
                  of, with_bytes_unit(state_bytes(features, config)));
  const auto cost_text = [](const TokenCost& cost) {
    return fmt::format("{}, {} operations a token", with_bytes_unit(cost.bytes),
                       grouped(std::llround(cost.operations)));
  };
  for (size_t layer = 0; layer < features.layers.size(); ++layer)
    text +=
        fmt::format("  layer {:<5} {}: {}\n", layer + 1,
                    layer_text(features.layers[layer].counts, exact_keys_of(features.exact, layer)),
                    cost_text(token_cost(features, config, layer, config.context)));
  return text + fmt::format("  teacher     a layer at {} tokens: {}\n", grouped(config.context),
                            cost_text(softmax_token_cost(config, config.context)));
}

void run(const InspectArguments& options) {
  const Checkpoint checkpoint(options.model.folder());
  const ModelConfig& config = checkpoint.config();
  const Parameters parameters = count_parameters(checkpoint);
  if (!options.json) {
    std::string text = table(config, parameters, checkpoint.folder());
    if (is_linear(checkpoint)) text += linear_lines(load_features(checkpoint), config);
    return print(text);
  }
  OrderedJson json = {{"model_type", config.model_type}, {"layers", config.layers},
                      {"heads", config.heads},           {"kv_heads", config.kv_heads},
                      {"head_size", config.head_size},   {"width", config.width},
                      {"vocabulary", config.vocabulary}, {"context", config.context},
                      {"parameters", parameters.count},  {"bytes", parameters.bytes},
                      {"dtype", name(parameters.dtype)}};
  if (is_linear(checkpoint)) {
    const FeatureSet features = load_features(checkpoint);
    json["linear_attention"] = {{"feature_map", name(features.map)},
                                {"features", features.counts()},
                                {"state_bytes", state_bytes(features, config)}};
    OrderedJson& about = json["linear_attention"];
    for (size_t layer = 0; layer < features.layers.size(); ++layer)
      about["layer_costs"].emplace_back(
          to_json(token_cost(features, config, layer, config.context)));
    about["softmax_layer_cost"] = to_json(softmax_token_cost(config, config.context));
    if (!features.exact.empty()) about["exact_keys"] = to_json(features.exact);
  }
  print_json(json);
}

}  // namespace

Command add_inspect(CLI::App& program) {
  CLI::App* app = program.add_subcommand("inspect", "Show what a model is: its shape and size");
  const auto options = std::make_shared<InspectArguments>();
  options->model.add(*app);
  add_json_flag(*app, options->json);
  app->footer(
      "Reads config.json and the headers of the weight files, not the weights themselves. A tied\n"
      "output head counts once.\n\n"
      "Example:\n  dofla inspect path/to/gpt2 --json\n\n"
      "JSON:\n  {\"model_type\", \"layers\", \"heads\", \"kv_heads\", \"head_size\", \"width\",\n"
      "   \"vocabulary\", \"context\", \"parameters\", \"bytes\", \"dtype\"}, and for a linear "
      "model\n"
      "   \"linear_attention\": {\"feature_map\", \"features\", \"state_bytes\", "
      "\"layer_costs\":\n"
      "   [{\"bytes\" of a sequence, all of which a token reads, \"operations\" of a token} a "
      "layer],\n"
      "   \"softmax_layer_cost\": the same of the teacher, at the context's length}, with exact "
      "keys\n   also \"exact_keys\": what every layer keeps");
  return {app, [options] { run(*options); }};
}

}  // namespace dofla::cli
