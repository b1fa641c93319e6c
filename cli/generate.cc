#include <memory>

#include "cli/command.h"
#include "cli/output.h"
#include "cli/progress_bar.h"
#include "dofla/core/error.h"
#include "dofla/generate/generate.h"

namespace dofla::cli {
namespace {

struct Options {
  ModelArgument model;
  std::string prompt;
  std::string ids;
  bool ignore_end = false;
  GenerateOptions generate;
  bool json = false;
};

// Without a prompt the model starts as it does at the beginning of a document.
TokenIds beginning(const ModelConfig& config) {
  if (config.begin_of_text) return {*config.begin_of_text};
  if (config.end_of_text) return {*config.end_of_text};
  fail("the model has no token to begin a text with: give --prompt or --ids");
}

TokenIds prompt_ids(const Options& options, const ModelConfig& config,
                    const std::optional<Tokenizer>& tokenizer) {
  if (!options.ids.empty()) {
    const std::vector<TokenIds> sequences =
        read_ids(options.ids, {.vocabulary = config.vocabulary, .longest = config.context});
    if (sequences.size() != 1)
      fail("{}: expected one sequence to continue, found {}", options.ids, sequences.size());
    return sequences.front();
  }
  if (options.prompt.empty()) return beginning(config);
  TokenIds ids = tokenizer->encode(options.prompt);
  return ids.empty() ? beginning(config) : ids;
}

// Prints tokens as they come: text where there is a tokenizer, ids where there is none.
class Printer {
 public:
  Printer(const std::optional<Tokenizer>& tokenizer, std::optional<int64_t> end_of_text)
      : end_of_text_(end_of_text) {
    if (tokenizer) decoder_.emplace(*tokenizer);
  }
  void token(int64_t id) {
    if (!decoder_) return print(fmt::format("{} ", id));
    if (id != end_of_text_) print(decoder_->push(id));
  }
  void end() { print(decoder_ ? decoder_->finish() + "\n" : "\n"); }

 private:
  std::optional<StreamDecoder> decoder_;
  std::optional<int64_t> end_of_text_;
};

void run_streaming(const Options& options, const Transformer& model, const TokenIds& prompt,
                   const std::optional<Tokenizer>& tokenizer) {
  Printer printer(tokenizer, model.config().end_of_text);
  print(options.prompt);
  const Generation result = generate(model, prompt, options.generate,
                                     [&](int64_t id) { printer.token(id); });
  printer.end();
  if (result.stopped == StopReason::kContextFull)
    remark(fmt::format("stopped: the model's context of {} tokens is full",
                       model.config().context));
  remark(fmt::format("{} tokens, {:.1f} tokens/s after a prompt of {} in {:.2f} s",
                     result.ids.size(), result.tokens_per_second, prompt.size(),
                     result.prompt_seconds));
}

void run_json(const Options& options, const Transformer& model, const TokenIds& prompt,
              const std::optional<Tokenizer>& tokenizer) {
  ProgressBar bar;
  const Progress progress = bar.progress();
  int64_t done = 0;
  report(progress, {"generate", 0, options.generate.max_tokens, "tokens"});
  const Generation result = generate(model, prompt, options.generate, [&](int64_t) {
    report(progress, {"generate", ++done, options.generate.max_tokens, "tokens"});
  });
  TokenIds shown = result.ids;
  if (result.stopped == StopReason::kEndOfText) shown.pop_back();
  OrderedJson json = {{"ids", result.ids}, {"text", nullptr}};
  if (tokenizer) json["text"] = tokenizer->decode(shown);
  json["tokens_per_second"] = result.tokens_per_second;
  print_json(json);
}

void run(const Options& options) {
  const Checkpoint checkpoint(options.model.folder());
  const std::optional<Tokenizer> tokenizer =
      options.prompt.empty() ? find_tokenizer(checkpoint.folder())
                             : std::optional(Tokenizer::load(checkpoint.folder()));
  const Transformer model(checkpoint);
  const TokenIds prompt = prompt_ids(options, model.config(), tokenizer);
  (options.json ? run_json : run_streaming)(options, model, prompt, tokenizer);
}

void add_sampling_options(CLI::App& app, SamplerOptions& sampler) {
  app.add_option("--temperature", sampler.temperature,
                 "divides the logits; 0 always takes the likeliest token")
      ->capture_default_str()
      ->type_name("X")
      ->check(between(0, 1e6));
  app.add_option("--top-k", sampler.top_k, "draw from the K likeliest tokens only; 0: from all")
      ->capture_default_str()
      ->type_name("K")
      ->check(at_least(0));
  app.add_option("--top-p", sampler.top_p,
                 "draw from the fewest tokens that hold probability P, 0 < P <= 1")
      ->capture_default_str()
      ->type_name("P")
      ->check(between(1e-9, 1));
  app.add_option("--seed", sampler.seed, "the same seed draws the same tokens")
      ->capture_default_str()
      ->type_name("N");
}

}  // namespace

Command add_generate(CLI::App& program) {
  CLI::App* app = program.add_subcommand("generate", "Continue a text");
  const auto options = std::make_shared<Options>();
  options->model.add(*app);
  CLI::Option* prompt =
      app->add_option("--prompt", options->prompt,
                      "the text to continue (left out: the beginning of a document)");
  prompt->type_name("TEXT");
  app->add_option("--ids", options->ids, "JSON file with the prompt's token ids: [[1, 2, 3]]")
      ->type_name("F")
      ->excludes(prompt);
  app->add_option("--max-tokens", options->generate.max_tokens, "tokens to generate at most")
      ->capture_default_str()
      ->type_name("N")
      ->check(at_least(1));
  add_sampling_options(*app, options->generate.sampler);
  app->add_flag("--ignore-end", options->ignore_end, "go on after the end-of-text token");
  add_json_flag(*app, options->json);
  app->footer(
      "The text streams as it comes, after the prompt. It ends at --max-tokens, at the end-of-text\n"
      "token, or when the model's context is full. A folder without a tokenizer takes --ids and\n"
      "prints ids.\n\n"
      "Examples:\n"
      "  dofla generate --prompt \"The river flows\"\n"
      "  dofla generate path/to/gpt2 --prompt \"Once\" --temperature 0 --max-tokens 32 --json\n\n"
      "JSON, all of the continuation only, without the prompt:\n"
      "  {\"ids\", \"text\", \"tokens_per_second\"}\n"
      "  \"ids\" ends with the end-of-text token if that stopped it, \"text\" leaves it out and is\n"
      "  null without a tokenizer; the rate is that of the tokens after the first.");
  return {app, [options] {
            options->generate.stop_at_end_of_text = !options->ignore_end;
            run(*options);
          }};
}

}  // namespace dofla::cli
