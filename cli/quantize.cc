#include <memory>

#include "cli/command.h"
#include "cli/device_option.h"
#include "cli/divergence_lines.h"
#include "cli/output.h"
#include "cli/progress_bar.h"
#include "dofla/checkpoint/parameters.h"
#include "dofla/fidelity/compare.h"
#include "dofla/fidelity/fidelity_json.h"
#include "dofla/linear/linear_model.h"
#include "dofla/linear/rounded_model.h"

namespace dofla::cli {
namespace {

// Windows that what was lost is measured on, unless the user says otherwise.
constexpr int64_t kSequences = 8;

struct QuantizeArguments {
  ModelArgument model;
  DeviceOption device;
  TextArguments text;
  std::string out;
  bool json = false;
};

Divergence measure_loss(const Checkpoint& source, const Checkpoint& rounded, const Windows& text,
                        const Device& device, const Progress& progress) {
  const Transformer before = load_model(source, device), after = load_model(rounded, device);
  return divergence_of(
      compare(before, {&after}, text.next, text.predicted_tokens, progress).front().windows);
}

void run(const QuantizeArguments& options) {
  prepare_new_folder(options.out);
  const Checkpoint source(options.model.folder());
  const Parameters before = count_parameters(source);
  Parameters after;
  Divergence divergence;
  {
    ProgressBar bar;
    // A text with a defect shows before anything is written, and the folder appears with its
    // figures.
    const Windows text = options.text.open(source, bar.progress());
    NewFolder out(options.out);
    write_rounded_model(out.path(), source);
    const Checkpoint rounded(out.path());
    after = count_parameters(rounded);
    divergence = measure_loss(source, rounded, text, options.device.get(), bar.progress());
    source.require_unchanged();
    out.commit();
  }
  if (options.json) {
    OrderedJson json = {{"bytes", after.bytes}, {"bytes_before", before.bytes}};
    json["fidelity"] = to_json(divergence);
    return print_json(json);
  }
  print(fmt::format("weights     {}, {}; before {}, {}\n", with_bytes_unit(after.bytes),
                    name(after.dtype), with_bytes_unit(before.bytes), name(before.dtype)));
  print(fmt::format("loss        {:.4f} nats a token, before {:.4f}, on {}\n", divergence.loss,
                    divergence.teacher_loss, counted(divergence.tokens, "token")));
  print(divergence_lines(divergence, 12));
  remark(fmt::format("{}: can be used by every command that does not train", options.out));
}

}  // namespace

Command add_quantize(CLI::App& program) {
  CLI::App* app = program.add_subcommand(
      "quantize", "Round a model's weights to 8 bits: less memory, faster generation on a CPU");
  const auto options = std::make_shared<QuantizeArguments>();
  options->model.add(*app);
  options->device.add(*app);
  options->text.add(*app, kSequences, kSequences);
  add_out(*app, options->out, "new folder for the model", "DIR")->required();
  add_json_flag(*app, options->json);
  app->footer(
      "Every row of a matrix becomes integers from -127 to 127 times a scale of its own. Norms,\n"
      "biases, learnt positions and features stay as they are. A CPU computes with the integers,\n"
      "and so reads half the bytes of 16-bit weights for every token; a GPU computes with 16-bit\n"
      "copies. The loss on the text is measured before and after; dofla compare MODEL DIR says\n"
      "more. Such a model cannot be trained: distil and fine-tune first, then round.\n\n"
      "Example:\n  dofla quantize gpt2-hybrid --data valid.jsonl.zst --out gpt2-hybrid-int8\n\n"
      "JSON:\n  {\"bytes\", \"bytes_before\", \"fidelity\": as a text of dofla compare}");
  return {app, [options] { run(*options); }};
}

}  // namespace dofla::cli
