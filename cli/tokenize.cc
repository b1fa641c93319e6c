#include <memory>

#include "cli/command.h"
#include "cli/output.h"

namespace dofla::cli {
namespace {

struct TokenizeArguments {
  ModelArgument model;
  std::string text;
  std::string file;
  bool json = false;
};

void run(const TokenizeArguments& options) {
  const Tokenizer tokenizer = Tokenizer::load(options.model.folder());
  const std::string text = options.file.empty() ? options.text : read_input(options.file);
  const TokenIds ids = tokenizer.encode(text);
  if (options.json) return print_json({{"ids", ids}});
  print(fmt::format("{}\n", fmt::join(ids, " ")));
  remark(fmt::format("{} for {}", counted(static_cast<int64_t>(ids.size()), "token"),
                     counted(static_cast<int64_t>(text.size()), "byte")));
}

}  // namespace

Command add_tokenize(CLI::App& program) {
  CLI::App* app = program.add_subcommand("tokenize", "Turn text into a model's token ids");
  const auto options = std::make_shared<TokenizeArguments>();
  options->model.add(*app);
  CLI::Option* text = app->add_option("--text", options->text, "the text itself");
  CLI::Option* file = app->add_option("--file", options->file,
                                      "a UTF-8 file or pipe, read whole; -: standard input");
  text->type_name("TEXT");
  file->type_name("F")->excludes(text);
  app->parse_complete_callback([text, file] {
    if (text->count() + file->count() == 0) throw CLI::RequiredError("--text or --file");
  });
  add_json_flag(*app, options->json);
  app->footer(
      "Uses the tokenizer.json (or vocab.json and merges.txt) in the model's folder.\n\n"
      "Example:\n  dofla tokenize path/to/gpt2 --text \"Hello world\"\n\n"
      "JSON:\n  {\"ids\": [15496, 995]}");
  return {app, [options] { run(*options); }};
}

}  // namespace dofla::cli
