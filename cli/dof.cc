#include <memory>

#include "cli/choice_option.h"
#include "cli/command.h"
#include "cli/device_option.h"
#include "cli/lambda_option.h"
#include "cli/output.h"
#include "cli/progress_bar.h"
#include "dofla/core/error.h"
#include "dofla/pipeline.h"

namespace dofla::cli {
namespace {

struct DofArguments {
  ModelArgument model;
  DeviceOption device;
  TextArguments text;
  LambdaOption lambda;
  DofOptions dof;
  Coordinates coordinates = kCoordinates;
  uint64_t seed = 0;
  std::string out;
  bool json = false;
};

// Layers down, heads across, as in the paper; the largest head of a layer carries a star.
std::string table_text(const DofTable& table) {
  std::string text = fmt::format(
      "Degrees of freedom of every head: {} coordinates, λ = {}, Gram scale {}, {}, {}\n",
      name(table.coordinates), lambda_text(table.lambda), name(table.gram),
      counted(table.samples, "sample"), counted(table.draws, "draw"));
  text += "layer";
  for (int64_t h = 1; h <= table.heads_in_layer(); ++h) text += fmt::format("{:>6} ", h);
  text += "  largest\n";
  int64_t layer = 0;
  for (const DofRow& row : degrees_of_freedom(table, table.lambda)) {
    text += fmt::format("{:>5}", ++layer);
    for (size_t h = 0; h < row.heads.size(); ++h)
      text += fmt::format("{:>6.1f}{}", row.heads[h].mean,
                          static_cast<int64_t>(h) == row.largest_head ? '*' : ' ');
    text += fmt::format("  {}\n", dof_text(row.largest(), table.draws));
  }
  return text;
}

void run(const DofArguments& options, const Group& group) {
  if (!options.out.empty() && group.is_first()) prepare_place(options.out);
  const Checkpoint checkpoint(options.model.folder());
  DofOptions dof = options.dof;
  dof.lambda = options.lambda.value().value_or(dof.lambda);
  DofTable table;
  {
    ProgressBar bar;
    const Windows text = options.text.open(checkpoint, bar.progress());
    std::vector<TokenIds> sequences;
    for (TokenIds sequence; text.next(sequence);) sequences.push_back(sequence);
    table = measure_dof(checkpoint, options.coordinates, sequences, dof, options.seed,
                        options.device.get(group), bar.progress(), group);
  }
  if (!group.is_first()) return;
  checkpoint.require_unchanged();
  const Json summary = dof_summary(table);
  if (!options.out.empty()) save_dof_table(options.out, table);
  if (options.json) return print_json(summary);
  print(table_text(table));
}

}  // namespace

Command add_dof(CLI::App& program) {
  CLI::App* app =
      program.add_subcommand("dof", "Measure how many features each attention head needs");
  const auto options = std::make_shared<DofArguments>();
  options->model.add(*app);
  options->device.add(*app);
  options->text.add(*app, kDofSequences);
  app->add_option("--samples", options->dof.samples, "queries and keys drawn a head")
      ->capture_default_str()
      ->type_name("J")
      ->check(whole_from(1));
  app->add_option("--draws", options->dof.draws, "independent draws, for the spread")
      ->capture_default_str()
      ->type_name("R")
      ->check(whole_between(1, 10000));
  options->lambda.add(
      *app, fmt::format("the ridge λ, such as 2^-4 (default: {})", lambda_text(kDefaultLambda)));
  add_choice(*app, "--coordinates", options->coordinates,
             "of the queries and keys; attention is the same in all of them");
  add_choice(*app, "--gram", options->dof.gram, "what the Gram matrix is divided by")
      ->type_name("SCALE");
  add_choice(*app, "--features", options->dof.features,
             "whose heads to measure: untied features belong to key heads, others to query heads");
  app->add_option("--seed", options->seed, "the same seed draws the same samples")
      ->capture_default_str()
      ->type_name("N")
      ->check(seed_number());
  app->add_flag("--errors", options->dof.errors,
                "also measure the error of M random features, for dofla plan --bound");
  add_out(*app, options->out, "save what was measured of all heads, for dofla plan", "F");
  add_json_flag(*app, options->json);
  app->footer(
      "The teacher reads the text; J of the queries and keys of every head are drawn, all equally\n"
      "likely; the degrees of freedom are tr Σ(Σ+λI)⁻¹ of their Gram matrix Σ. A layer has those "
      "of\n"
      "its largest head, marked by a star. The file of --out answers for any λ from 2^-16 up;\n"
      "measured on a GPU, for powers of two from 2^-16 to 1 and the λ that was asked for.\n"
      "--errors draws features from the Gaussian and from the leverage density, and measures the\n"
      "norm that the theorem bounds; dofla plan --bound and dofla report show it.\n\n"
      "Example:\n  dofla dof path/to/gpt2 --data train.jsonl.zst --out dof.json\n\n"
      "JSON:\n  {\"coordinates\", \"feature_heads\", \"gram\", \"lambda\", \"samples\", \"draws\", "
      "\"sequences\", "
      "\"length\", "
      "\"seed\", "
      "\"model\",\n"
      "   \"layers\": [{\"dof\", \"spread\", \"heads\": [{\"dof\", \"spread\"}]}]}\n"
      "   and with --errors \"ladder\": [M], and of every head \"errors\": {\"gaussian\": [error "
      "for\n"
      "   each M], \"leverage\", \"largest_score\"}");
  return {.app = app, .share = [options](const Group& group) { run(*options, group); }};
}

}  // namespace dofla::cli
