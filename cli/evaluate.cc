#include "dofla/pipeline/evaluate.h"

#include <memory>

#include <fmt/ranges.h>

#include "cli/command.h"
#include "cli/controls_table.h"
#include "cli/device_option.h"
#include "cli/divergence_lines.h"
#include "cli/evaluate_last_words.h"
#include "cli/evaluate_recall.h"
#include "cli/evaluate_tasks.h"
#include "cli/exact_keys_option.h"
#include "cli/output.h"
#include "cli/progress_bar.h"
#include "cli/usage_error.h"
#include "dofla/fidelity/fidelity_json.h"

namespace dofla::cli {
namespace {

// An answer in seconds; all of the built-in text takes minutes.
constexpr int64_t kBuiltInSequences = 16;

struct EvaluateArguments {
  ModelArgument model;
  DeviceOption device;
  TextArguments text;
  TaskArguments tasks;
  RecallArguments recall;
  LastWordsArgument last_words;
  std::string teacher;
  ExactKeysOption exact;
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

void run_beside_teacher(const EvaluateArguments& options, const Group& group) {
  const Checkpoint checkpoint(options.model.folder()), teacher(options.teacher);
  TeacherEvaluation found;
  {
    ProgressBar bar;
    const Windows text = options.text.open(checkpoint, bar.progress());
    found = evaluate_beside_teacher(checkpoint, teacher, text, options.device.get(group),
                                    bar.progress(), group);
  }
  if (!group.is_first()) return;
  const Divergence& result = found.divergence;
  if (options.json) {
    OrderedJson json = dofla::to_json(result);
    json["attention_error"] = found.attention_error;
    json["controls"] = to_json(found.controls);
    return print_json(json);
  }
  print(fmt::format(
      "loss         {:.4f} nats a token, teacher {:.4f}\n"
      "perplexity   {:.2f}\n"
      "{}"
      "layer error  {:.3f} of each layer's attention output, relative\n"
      "tokens       {} predicted\n",
      result.loss, result.teacher_loss, result.perplexity(), divergence_lines(result, 13),
      fmt::join(found.attention_error, " "), grouped(result.tokens)));
  print(controls_table(found.controls, {.loss = result.loss,
                                        .teacher_loss = result.teacher_loss,
                                        .state_bytes = found.state_bytes}));
}

void run_alone(const EvaluateArguments& options, const std::optional<ExactKeys>& exact,
               const Group& group) {
  const Checkpoint checkpoint(options.model.folder());
  TextEvaluation found;
  {
    ProgressBar bar;
    const Windows text = options.text.open(checkpoint, bar.progress());
    found =
        evaluate_text(checkpoint, exact, text, options.device.get(group), bar.progress(), group);
  }
  if (!group.is_first()) return;
  const NextTokenLoss& result = found.next_token;
  if (options.json) return print_json(to_json(result));
  print(
      fmt::format("loss        {:.4f} nats a token\n"
                  "perplexity  {:.2f}\n"
                  "tokens      {} predicted in {}\n",
                  result.loss, result.perplexity, grouped(result.tokens),
                  counted(static_cast<int64_t>(result.sequences.size()), "sequence")));
  options.text.remark_on_default(static_cast<int64_t>(result.sequences.size()));
  const double speed = static_cast<double>(result.tokens) / found.seconds;
  remark(fmt::format("{:.1f} s, {} tokens/s", found.seconds, grouped(static_cast<int64_t>(speed))));
}

void run(const EvaluateArguments& options, const Group& group) {
  if (options.tasks.given())
    return options.tasks.run(options.model.folder(), options.device.get(group), options.json,
                             group);
  if (options.last_words.given())
    return options.last_words.run(options.model.folder(), options.device.get(group), options.json,
                                  group);
  const std::optional<ExactKeys> exact = options.exact.value();
  if (exact) from_arguments([&] { return (require_valid(*exact), true); });
  if (options.recall.given())
    return options.recall.run(options.model.folder(), options.teacher, exact,
                              options.device.get(group), options.text, options.json, group);
  options.teacher.empty() ? run_alone(options, exact, group) : run_beside_teacher(options, group);
}

}  // namespace

Command add_evaluate(CLI::App& program) {
  CLI::App* app = program.add_subcommand(
      "evaluate", "Measure how well a model predicts text or answers questions");
  const auto options = std::make_shared<EvaluateArguments>();
  options->model.add(*app);
  options->device.add(*app);
  options->text.add(*app, 0, kBuiltInSequences);
  CLI::Option* teacher =
      app->add_option("--teacher", options->teacher,
                      "compare with this model: KL, agreement, error of each layer's attention")
          ->type_name("MODEL");
  options->tasks.add(*app);
  options->recall.add(*app);
  options->last_words.add(*app);
  options->exact.add(*app, "is forgotten\n(left out: a softmax model keeps all)", nullptr,
                     {teacher, app->get_option("--task"), app->get_option("--last-words")});
  add_json_flag(*app, options->json);
  app->footer(
      "Protocol: documents are joined by the end-of-text token and cut into windows of L tokens\n"
      "that do not overlap; the last one may be shorter. The model sees each window on its own:\n"
      "a window of n tokens has n - 1 predictions. The loss is the mean next-token cross-entropy\n"
      "in nats over all predictions, the perplexity its exponential, and \"tokens\" counts the\n"
      "predicted tokens. With --ids every array is a sequence of its own, of 2 tokens up to the\n"
      "context.\n\n"
      "With --teacher a student is also compared with what it has to beat: itself with its exact\n"
      "keys or its features alone, and the teacher with nothing but a window and 4 sinks, or the\n"
      "keys attended most lately, in the same memory.\n\n"
      "With --keys or --window a softmax model attends to these alone, with --recall too: what a\n"
      "cache without features\n"
      "is worth.\n\n"
      "A question of a task is answered by the candidate with the highest log-likelihood, summed\n"
      "(acc) or divided by its number of characters (acc_norm). With --letters the options stand\n"
      "in the prompt, once in every rotation: acc is over all of them, \"as published\" is that "
      "of\n"
      "the file's order, \"same option\" the share of questions whose answer does not change.\n"
      "Prompts: docs/tasks.md.\n\n"
      "A last word is said if each of its tokens is the likeliest; its perplexity is a word's.\n\n"
      "--recall asks by generation for a four-digit number that stood so many tokens before the\n"
      "question, among the numbers of other things (\"confused\": one of these was answered), or\n"
      "that stands alone in the text, at a depth of 0 (its beginning) to 1 (the needle), and\n"
      "shows how well the model predicts a random sequence of so many tokens when it comes again\n"
      "(induction). Protocol: docs/recall.md.\n\n"
      "Example:\n  dofla evaluate path/to/gpt2 --data valid.jsonl.zst --sequences 64\n"
      "  dofla evaluate path/to/gpt2 --task piqa --task arc_easy --task-data path/to/tasks\n"
      "  dofla evaluate student --recall --teacher path/to/gpt2 --distances 128,256,512\n\n"
      "JSON:\n  {\"loss\", \"perplexity\", \"tokens\", \"sequences\": [{\"tokens\", \"loss\"}]}\n"
      "  With --teacher instead of sequences what dofla compare has of a text: \"teacher_loss\", "
      "\"kl\",\n"
      "  \"same_top\", ..., and \"attention_error\" (one a layer), \"controls\": [{\"name\", "
      "\"loss\",\n"
      "  \"state_bytes\"}] (name: exact-keys, features, window or cache). With --task: {\"tasks\": "
      "[{\"task\", "
      "\"split\",\n"
      "  \"questions\", \"acc\", \"acc_stderr\", \"acc_norm\", \"acc_norm_stderr\", "
      "\"truncated\",\n"
      "  \"not_finite\"}]}, with --letters \"asked\", \"unanswered\", \"acc\", \"as_published\",\n"
      "  \"same_option\", \"chance\". With --last-words: {\"words\", \"acc\", \"acc_stderr\",\n"
      "  \"loss\", \"perplexity\", \"truncated\"}.\n"
      "  With --recall: {\"recall\": [{\"distance\", \"questions\", \"exact\", \"confused\",\n"
      "  \"chance\"}], \"needle\": [{\"length\", \"depth\", \"questions\", \"exact\", "
      "\"chance\"}],\n"
      "  \"induction\": [{\"distance\", \"accuracy\", \"chance\"}]}, where exact and\n"
      "  confused count questions; with --teacher also \"teacher_exact\", \"teacher_confused\",\n"
      "  \"teacher_accuracy\". A loss that is not finite is an error.");
  return {.app = app, .share = [options](const Group& group) { run(*options, group); }};
}

}  // namespace dofla::cli
