#include <memory>

#include <sys/stat.h>
#include <unistd.h>

#include "cli/command.h"
#include "cli/device_option.h"
#include "cli/generate_options.h"
#include "cli/output.h"
#include "cli/progress_bar.h"
#include "dofla/core/error.h"
#include "dofla/generate/text_generator.h"
#include "dofla/linear/linear_model.h"

namespace dofla::cli {
namespace {

struct GenerateArguments {
  ModelArgument model;
  DeviceOption device;
  std::string prompt;
  std::string ids;
  DrawingOptions drawing;
  bool json = false;
};

bool is_pipe(int descriptor) {
  struct stat status = {};
  return ::fstat(descriptor, &status) == 0 && S_ISFIFO(status.st_mode);
}

Prompt read_prompt(const GenerateArguments& options, const Transformer& model) {
  if (options.ids.empty()) return {.text = options.prompt};
  std::vector<TokenIds> sequences = read_ids(
      options.ids, {.vocabulary = model.config().vocabulary, .longest = model.most_tokens()});
  if (sequences.size() != 1)
    fail("{}: expected one sequence to continue, found {}", options.ids, sequences.size());
  return {.ids = std::move(sequences.front())};
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
                                                 ? Tokenizer::find(checkpoint.folder())
                                                 : Tokenizer::load(checkpoint.folder());
  const Transformer model = load_model(checkpoint, options.device.get());
  TextGenerator generator(model, tokenizer, read_prompt(options, model), options.drawing.value());
  const Generation& result = generator.result();

  std::string text;
  ProgressBar bar;
  const Progress progress = options.json ? bar.progress() : Progress();  // else the text itself
  const int64_t most = options.drawing.value().max_tokens;
  int64_t done = 0;
  report(progress, {"generate", done, most, "tokens"});
  while (const std::optional<Piece> piece = generator.next()) {
    if (done == 0 && !options.json) print(options.prompt);
    report(progress, {"generate", ++done, most, "tokens"});
    text += piece->text;
    if (options.json) continue;
    const bool ends = generator.done() && result.stopped == StopReason::kEndOfText;
    print(tokenizer || ends ? piece->text : fmt::format("{} ", piece->id));
  }
  checkpoint.require_unchanged();

  if (options.json) {
    OrderedJson json = {{"ids", result.ids}, {"text", nullptr}};
    if (tokenizer) json["text"] = text;
    json["tokens_per_second"] = result.tokens_per_second;
    return print_json(json);
  }
  print("\n");
  print_remarks(result, generator.prompt(), model.most_tokens());
}

}  // namespace

Command add_generate(CLI::App& program) {
  CLI::App* app = program.add_subcommand("generate", "Continue a text");
  const auto options = std::make_shared<GenerateArguments>();
  options->model.add(*app);
  options->device.add(*app);
  CLI::Option* prompt = app->add_option(
      "--prompt", options->prompt,
      "the text to continue; -: standard input (default: what a pipe brings, or the\n"
      "beginning of a document)");
  prompt->type_name("TEXT");
  CLI::Option* ids =
      app->add_option("--ids", options->ids, "JSON file with the prompt's token ids: [[1, 2, 3]]");
  ids->type_name("F")->excludes(prompt);
  options->drawing.add(*app);
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
            const bool piped = prompt->count() + ids->count() == 0 && is_pipe(STDIN_FILENO);
            if (options->prompt == "-" || piped) options->prompt = read_input("-");
            run(*options);
          }};
}

}  // namespace dofla::cli
