#include "dofla/pipeline/teach.h"

#include <memory>

#include "cli/command.h"
#include "cli/device_option.h"
#include "cli/output.h"
#include "cli/progress_bar.h"

namespace dofla::cli {
namespace {

struct TeachArguments {
  ModelArgument model;
  DeviceOption device;
  TextArguments text;
  int64_t top = 256;
  std::string out;
  bool json = false;
};

void run(const TeachArguments& options) {
  prepare_place(options.out);
  const Checkpoint checkpoint(options.model.folder());
  Taught taught;
  {
    ProgressBar bar;
    const WindowSet windows = options.text.read(checkpoint, bar.progress());
    taught =
        teach(options.out, checkpoint, windows, options.top, options.device.get(), bar.progress());
  }
  const TeacherFileHeader& header = taught.header;
  if (options.json)
    return print_json({{"windows", header.windows},
                       {"length", header.length},
                       {"top", header.top},
                       {"named", taught.named},
                       {"bytes", taught.bytes}});
  print(
      fmt::format("windows     {} of {} tokens\n"
                  "named       the {} likeliest tokens, {:.2f} % of the probability\n"
                  "file        {}, {} bytes a token\n",
                  grouped(header.windows), header.length, header.top, 100 * taught.named,
                  with_bytes_unit(taught.bytes), taught.bytes / (header.windows * header.length)));
  remark(fmt::format("{}: for dofla finetune --taught, with the same text", options.out));
}

}  // namespace

Command add_teach(CLI::App& program) {
  CLI::App* app = program.add_subcommand(
      "teach",
      "Write a teacher's likeliest next tokens on a text to a file, for finetune --taught");
  const auto options = std::make_shared<TeachArguments>();
  options->model.add(*app);
  options->device.add(*app);
  options->text.add(*app);
  add_number(*app, "--top", options->top, "likeliest next tokens to keep for every token", "K",
             whole_between(1, 1 << 20))
      ->capture_default_str();
  add_out(*app, options->out, "file to write", "FILE")->required();
  add_json_flag(*app, options->json);
  app->footer(
      "finetune --taught FILE then learns from the file as it does from --teacher MODEL, without\n"
      "the teacher's memory and time: many students, or many passes, share the cost of one. For\n"
      "every token the file has the K likeliest next ones with their probabilities, and the\n"
      "probability of all others together; docs/finetune.md says what is lost. A file is only\n"
      "valid for these windows and this vocabulary, and appears whole or not at all.\n\n"
      "Example:\n  dofla teach gpt2 --data wiki.jsonl.zst --length 512 --out wiki.teacher\n"
      "  dofla finetune gpt2-linear --data wiki.jsonl.zst --length 512 --taught wiki.teacher --out "
      "gpt2-tuned\n\n"
      "JSON:\n  {\"windows\", \"length\", \"top\", \"named\", \"bytes\"}; named is the share of "
      "the\n"
      "   probability that the K tokens have, bytes the size of the file");
  return {.app = app, .run = [options] { run(*options); }};
}

}  // namespace dofla::cli
