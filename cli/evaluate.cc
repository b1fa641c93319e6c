#include <chrono>
#include <memory>

#include "cli/command.h"
#include "cli/output.h"
#include "cli/progress_bar.h"
#include "dofla/evaluate/next_token.h"

namespace dofla::cli {
namespace {

struct Options {
  ModelArgument model;
  TextArguments text;
  bool json = false;
};

OrderedJson to_json(const NextTokenLoss& result) {
  OrderedJson sequences = OrderedJson::array();
  for (const SequenceLoss& sequence : result.sequences)
    sequences.push_back({{"tokens", sequence.tokens}, {"loss", sequence.loss}});
  return {{"loss", result.loss},
          {"perplexity", result.perplexity},
          {"tokens", result.tokens},
          {"sequences", std::move(sequences)}};
}

void run(const Options& options) {
  const Checkpoint checkpoint(options.model.folder());
  const Transformer model(checkpoint);
  NextTokenLoss result;
  double seconds = 0;
  {
    ProgressBar bar;
    const TextArguments::Sequences text =
        options.text.open(checkpoint.folder(), model.config(), bar.progress());
    const auto start = std::chrono::steady_clock::now();
    result = evaluate_next_token(model, text.next, text.predicted_tokens, bar.progress());
    seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  }
  if (options.json) return print_json(to_json(result));
  print(
      fmt::format("loss        {:.4f} nats a token\n"
                  "perplexity  {:.2f}\n"
                  "tokens      {} predicted in {} sequences\n",
                  result.loss, result.perplexity, grouped(result.tokens),
                  grouped(static_cast<int64_t>(result.sequences.size()))));
  remark(fmt::format("{:.1f} s, {} tokens/s", seconds,
                     grouped(static_cast<int64_t>(static_cast<double>(result.tokens) / seconds))));
}

}  // namespace

Command add_evaluate(CLI::App& program) {
  CLI::App* app =
      program.add_subcommand("evaluate", "Measure how well a model predicts the next token");
  const auto options = std::make_shared<Options>();
  options->model.add(*app);
  options->text.add(*app);
  add_json_flag(*app, options->json);
  app->footer(
      "Protocol: documents are joined by the end-of-text token and cut into windows of L tokens\n"
      "that do not overlap; the last one may be shorter. The model sees each window on its own, "
      "so\n"
      "that a window of n tokens has n - 1 predictions. The loss is the mean next-token\n"
      "cross-entropy in nats over all predictions, the perplexity its exponential, and \"tokens\"\n"
      "counts predicted tokens. With --ids every array is a sequence of its own, of 2 tokens up "
      "to\n"
      "the context.\n\n"
      "Example:\n  dofla evaluate path/to/gpt2 --data valid.jsonl.zst --sequences 64\n\n"
      "JSON:\n  {\"loss\", \"perplexity\", \"tokens\", \"sequences\": [{\"tokens\", \"loss\"}]}\n"
      "  A number that is not finite is null.");
  return {app, [options] { run(*options); }};
}

}  // namespace dofla::cli
