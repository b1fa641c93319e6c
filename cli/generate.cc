#include "dofla/generate/generate.h"

#include <memory>

#include <sys/stat.h>
#include <unistd.h>

#include "cli/command.h"
#include "cli/device_option.h"
#include "cli/output.h"
#include "cli/progress_bar.h"
#include "cli/sampling_options.h"
#include "dofla/core/error.h"
#include "dofla/linear/linear_model.h"

namespace dofla::cli {
namespace {

struct GenerateArguments {
  ModelArgument model;
  DeviceOption device;
  std::string prompt;
  std::string ids;
  bool ignore_end = false;
  GenerateOptions generate;
  bool json = false;
};

bool is_pipe(int descriptor) {
  struct stat status = {};
  return ::fstat(descriptor, &status) == 0 && S_ISFIFO(status.st_mode);
}

// Without a prompt the model starts as it does at the beginning of a document.
TokenIds beginning(const ModelConfig& config) {
  if (config.begin_of_text) return {*config.begin_of_text};
  if (config.end_of_text) return {*config.end_of_text};
  fail("the model has no token to begin a text with: give --prompt or --ids");
}

TokenIds prompt_ids(const GenerateArguments& options, const Transformer& model,
                    const std::optional<Tokenizer>& tokenizer) {
  const ModelConfig& config = model.config();
  if (!options.ids.empty()) {
    const std::vector<TokenIds> sequences =
        read_ids(options.ids, {.vocabulary = config.vocabulary, .longest = model.most_tokens()});
    if (sequences.size() != 1)
      fail("{}: expected one sequence to continue, found {}", options.ids, sequences.size());
    return sequences.front();
  }
  if (options.prompt.empty()) return beginning(config);
  TokenIds ids = tokenizer->encode(options.prompt);
  return ids.empty() ? beginning(config) : ids;
}

// The decoder reads a prompt first: SentencePiece tokenizers drop the space before the first word
// of a text, which the first word of a continuation must keep.
std::optional<StreamDecoder> decoder_after(const GenerateArguments& options, const TokenIds& prompt,
                                           const std::optional<Tokenizer>& tokenizer) {
  if (!tokenizer) return std::nullopt;
  StreamDecoder decoder(*tokenizer);
  const bool continues = !options.prompt.empty() || !options.ids.empty();
  if (continues)
    for (const int64_t id : prompt) decoder.next(id);
  return decoder;
}

void print_remarks(const Generation& result, const TokenIds& prompt, int64_t context) {
  if (result.stopped == StopReason::kContextFull)
    remark(fmt::format("stopped: the model's context of {} tokens is full", context));
  remark(fmt::format("{}, {:.1f} tokens/s after a prompt of {} in {:.2f} s",
                     counted(static_cast<int64_t>(result.ids.size()), "token"),
                     result.tokens_per_second, prompt.size(), result.prompt_seconds));
}

void run(const GenerateArguments& options) {
  const Checkpoint checkpoint(options.model.folder());
  const std::optional<Tokenizer> tokenizer = options.prompt.empty()
                                                 ? find_tokenizer(checkpoint.folder())
                                                 : Tokenizer::load(checkpoint.folder());
  const Transformer model = load_model(checkpoint, options.device.get());
  const ModelConfig& config = model.config();
  const TokenIds prompt = prompt_ids(options, model, tokenizer);
  std::optional<StreamDecoder> decoder = decoder_after(options, prompt, tokenizer);

  std::string text;
  const auto add_text = [&](std::string_view piece) {
    text += piece;
    if (!options.json) print(piece);
  };
  ProgressBar bar;
  const Progress progress = options.json ? bar.progress() : Progress();  // else the text itself
  const int64_t most = options.generate.max_tokens;
  int64_t done = 0;
  report(progress, {"generate", done, most, "tokens"});
  const Generation result = generate(model, prompt, options.generate, [&](int64_t id) {
    if (done == 0 && !options.json) print(options.prompt);
    report(progress, {"generate", ++done, most, "tokens"});
    if (options.generate.stop_at_end_of_text && id == config.end_of_text) return;
    add_text(decoder ? decoder->next(id) : fmt::format("{} ", id));
  });
  if (decoder) add_text(decoder->finish());
  checkpoint.require_unchanged();

  if (options.json) {
    OrderedJson json = {{"ids", result.ids}, {"text", nullptr}};
    if (decoder) json["text"] = text;
    json["tokens_per_second"] = result.tokens_per_second;
    return print_json(json);
  }
  print("\n");
  print_remarks(result, prompt, model.most_tokens());
}

}  // namespace

Command add_generate(CLI::App& program) {
  CLI::App* app = program.add_subcommand("generate", "Continue a text");
  const auto options = std::make_shared<GenerateArguments>();
  options->model.add(*app);
  options->device.add(*app);
  CLI::Option* prompt = app->add_option(
      "--prompt", options->prompt,
      "the text to continue; -: standard input (left out: what a pipe brings, or the\n"
      "beginning of a document)");
  prompt->type_name("TEXT");
  CLI::Option* ids =
      app->add_option("--ids", options->ids, "JSON file with the prompt's token ids: [[1, 2, 3]]");
  ids->type_name("F")->excludes(prompt);
  app->add_option("--max-tokens", options->generate.max_tokens, "tokens to generate at most")
      ->capture_default_str()
      ->type_name("N")
      ->check(whole_from(1));
  add_sampling_options(*app, options->generate.sampler);
  app->add_flag("--ignore-end", options->ignore_end, "go on after the end-of-text token");
  add_json_flag(*app, options->json);
  app->footer(
      "The text streams as it comes, after the prompt. It ends at --max-tokens, at the\n"
      "end-of-text token, or when the model's context is full; a model that has linear attention "
      "in\n"
      "every layer, and rotary positions, goes on past its context. A folder without a tokenizer\n"
      "takes --ids and prints ids.\n\n"
      "Examples:\n"
      "  dofla generate --prompt \"The river flows\"\n"
      "  head -c 500 story.txt | dofla generate\n"
      "  dofla generate path/to/gpt2 --prompt \"Once\" --temperature 0 --max-tokens 32 --json\n\n"
      "JSON, all of the continuation only, without the prompt:\n"
      "  {\"ids\", \"text\", \"tokens_per_second\"}\n"
      "  \"ids\" ends with the end-of-text token if that stopped it, \"text\" leaves it out and "
      "is\n"
      "  null without a tokenizer; the rate is that of the tokens after the first.");
  return {app, [options, prompt, ids] {
            options->generate.stop_at_end_of_text = !options->ignore_end;
            const bool piped = prompt->count() + ids->count() == 0 && is_pipe(STDIN_FILENO);
            if (options->prompt == "-" || piped) options->prompt = read_input("-");
            run(*options);
          }};
}

}  // namespace dofla::cli
