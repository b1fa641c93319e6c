#include <memory>

#include "cli/choice_option.h"
#include "cli/command.h"
#include "cli/device_option.h"
#include "cli/exact_keys_option.h"
#include "cli/memory_option.h"
#include "cli/output.h"
#include "cli/progress_bar.h"
#include "cli/usage_error.h"
#include "dofla/core/error.h"
#include "dofla/linear/linear_model.h"
#include "dofla/pipeline.h"

namespace dofla::cli {
namespace {

struct SensitivityArguments {
  ModelArgument model;
  DeviceOption device;
  TextArguments text;
  SensitivityOptions sensitivity;
  ExactKeysOption exact;
  Coordinates coordinates = kCoordinates;
  int64_t held_out = kHeldOut;
  std::string out;
  bool json = false;
};

// What is lost of repeated tokens as one key head after another keeps all of its keys.
std::string recall_text(const SensitivityTable& table) {
  constexpr size_t kMostLines = 12;
  const RecallOrder& recall = table.recall;
  if (recall.windows == 0) return "";
  std::string text = fmt::format(
      "Loss of tokens that repeat what stood before: {:.4f} nats with the keys of a plan for "
      "ordinary\n"
      "text, and when these key heads, one after another, keep all keys\n"
      "layer  key head      keys    loss left\n",
      recall.lost);
  double left = recall.lost;
  for (size_t i = 0; i < std::min(recall.steps.size(), kMostLines); ++i) {
    const RecallOrder::Step& step = recall.steps[i];
    left -= step.saved;
    text += fmt::format("{:>5}{:>10}{:>10}{:>13.4f}\n", step.layer + 1, step.head + 1, step.keys,
                        std::max(left, 0.0));
  }
  if (recall.steps.size() > kMostLines)
    text += fmt::format("and {} more\n", recall.steps.size() - kMostLines);
  return text;
}

// Layers down, students across.
std::string table_text(const SensitivityTable& table) {
  std::string text = fmt::format(
      "Loss added when a layer alone is linear, in nats a token above {:.4f}, on {} windows\n"
      "layer",
      table.teacher_loss, table.windows);
  for (const int64_t M : table.ladder) text += fmt::format("{:>10}", fmt::format("M = {}", M));
  text += "   largest head\n";
  for (size_t s = 0; s < table.layers.size(); ++s) {
    text += fmt::format("{:>5}", s + 1);
    for (const double added : table.layers[s]) text += fmt::format("{:>10.4f}", added);
    size_t largest = 0;
    for (size_t h = 1; h < table.heads[s].size(); ++h)
      if (table.heads[s][h].back() > table.heads[s][largest].back()) largest = h;
    text += fmt::format("   {}: {:.4f}\n", largest + 1, table.heads[s][largest].back());
  }
  if (table.key_ladder.empty()) return text;
  text += "Loss added when it alone keeps only K exact keys and has no features\nlayer";
  for (const int64_t K : table.key_ladder) text += fmt::format("{:>10}", fmt::format("K = {}", K));
  text += "\n";
  for (size_t s = 0; s < table.keys.size(); ++s) {
    text += fmt::format("{:>5}", s + 1);
    for (const double added : table.keys[s]) text += fmt::format("{:>10.4f}", added);
    text += "\n";
  }
  return text + recall_text(table);
}

SensitivityOptions what_to_measure(const SensitivityArguments& options) {
  SensitivityOptions sensitivity = options.sensitivity;
  sensitivity.exact = options.exact.value().value_or(ExactKeys{});
  if (options.exact.given() && !sensitivity.cost) sensitivity.cost = kFeaturesBesideExactKeys;
  return sensitivity;
}

void run(const SensitivityArguments& options, const Group& group) {
  if (!options.out.empty() && group.is_first()) prepare_place(options.out);
  const Checkpoint checkpoint(options.model.folder());
  if (is_linear(checkpoint))
    fail("{}: is a linear-attention model already; measure its teacher",
         checkpoint.folder().string());
  SensitivityTable table;
  {
    ProgressBar bar;
    const DistillText text =
        split_held_out(options.text.read(checkpoint, bar.progress()), options.held_out);
    table = from_arguments([&] {
      return measure_sensitivity(checkpoint, options.coordinates, text.train,
                                 what_to_measure(options), options.device.get(group),
                                 bar.progress(), group);
    });
  }
  if (!group.is_first()) return;
  checkpoint.require_unchanged();
  if (!options.out.empty()) save_sensitivity(options.out, table);
  if (options.json) return print_json(to_json(table));
  print(table_text(table));
}

}  // namespace

Command add_sensitivity(CLI::App& program) {
  CLI::App* app = program.add_subcommand(
      "sensitivity", "Measure how much loss each layer and head adds when it is linear");
  const auto options = std::make_shared<SensitivityArguments>();
  SensitivityOptions& sensitivity = options->sensitivity;
  options->model.add(*app);
  options->device.add(*app);
  options->text.add(*app);
  add_choice(*app, "--coordinates", options->coordinates,
             "of the queries and keys that features see");
  add_choice(*app, "--features", sensitivity.features, "of the students: untied or prf");
  CLI::Option* cost =
      app->add_option("--cost", sensitivity.cost,
                      fmt::format("students have C/16, C/4, C and 4C features a head (left out: C "
                                  "is the\nsize of a head, beside exact keys {})",
                                  kFeaturesBesideExactKeys))
          ->type_name("C")
          ->check(whole_between(1, DimensionPlan::kLargestDimension));
  app->add_option("--ladder", sensitivity.ladder,
                  "features a head of the students, such as 8,32,128, instead of --cost")
      ->type_name("M,M")
      ->delimiter(',')
      ->check(whole_between(1, DimensionPlan::kLargestDimension))
      ->excludes(cost);
  CLI::Option* memory =
      add_memory(*app, sensitivity.memory,
                 "that a plan is to spend, such as 3MB: what layers add with exact keys and no\n"
                 "features is measured too, and that of features beside the keys that fit")
          ->excludes(cost);
  options->exact.add(*app, "goes to the features (left out: none)", memory);
  add_number(*app, "--steps", sensitivity.steps, "optimizer steps of the students", "N",
             whole_from(0))
      ->capture_default_str();
  add_number(*app, "--batch", sensitivity.batch, "windows a step", "B", whole_between(1, 1 << 20))
      ->capture_default_str();
  add_number(*app, "--windows", sensitivity.windows,
             "first windows of the text that the loss is measured on (left out: 4)", "W",
             whole_from(1));
  app->add_option(
         "--recall-windows", sensitivity.recall_windows,
         "windows after these that ask for what stood far back: their ends repeat passages\n"
         "of what came before (left out: 2)")
      ->type_name("W")
      ->check(whole_between(0, 1 << 20))
      ->needs(memory);
  add_number(*app, "--held-out", options->held_out,
             "last windows of the text that are not touched, as in distill", "T", whole_from(0))
      ->capture_default_str();
  app->add_option("--seed", sensitivity.seed, "of features and batches")
      ->capture_default_str()
      ->type_name("N")
      ->check(seed_number());
  add_out(*app, options->out, "save what was measured, for dofla plan", "F");
  add_json_flag(*app, options->json);
  app->footer(
      "Students of several sizes are trained side by side on the same batches. Then each layer in\n"
      "turn is made linear while all others keep their softmax attention, and the divergence from\n"
      "the teacher's distribution of the next token is measured, which is what the loss rises by;\n"
      "a backward through the teacher tells how it is spread over the heads. The file of --out\n"
      "serves any budget. It gives the plan of distill --strategy sensitivity if text, --cost or\n"
      "--memory, --held-out, --seed, exact keys, --coordinates and --features are the same.\n\n"
      "Example:\n"
      "  dofla sensitivity path/to/gpt2 --data train.jsonl.zst --out sensitivity.json\n"
      "  dofla plan sensitivity.json --cost 64 --out plan.json\n"
      "  dofla distill path/to/gpt2 --data train.jsonl.zst --plan plan.json --out gpt2-linear\n\n"
      "JSON:\n  {\"model\", \"feature_heads\", \"coordinates\", \"ladder\": [M], \"steps\", "
      "\"batch\", "
      "\"recipe\",\n   \"windows\", \"length\", \"text\", \"seed\",\n"
      "   \"teacher_loss\", \"layers\": [{\"added\": [nats, one for each M], \"heads\": "
      "[[nats]]}]};\n"
      "   beside exact keys \"exact_keys\" and \"key_heads\", with --memory \"key_ladder\": [K] "
      "and in the layers\n"
      "   \"added_without_features\": [nats, one for each K] and \"heads_without_features\", with\n"
      "   \"recall\": {\"windows\", \"lost\": nats a repeated token with the keys of a plan for\n"
      "   ordinary text, \"order\": [{\"layer\", \"head\", \"keys\", \"saved\": of it when this "
      "one,\n"
      "   too, keeps all}]}");
  return {.app = app, .share = [options](const Group& group) { run(*options, group); }};
}

}  // namespace dofla::cli
