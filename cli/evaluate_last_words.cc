#include "cli/evaluate_last_words.h"

#include "cli/output.h"
#include "cli/progress_bar.h"
#include "cli/task_results.h"
#include "dofla/evaluate/answers_json.h"
#include "dofla/pipeline/evaluate.h"

namespace dofla::cli {

void LastWordsArgument::add(CLI::App& app) {
  CLI::Option* words = app.add_option("--last-words", file_,
                                      "say the last word of texts instead, such as LAMBADA's:\n"
                                      "lines of {\"context\", \"continuation\"}");
  words->type_name("FILE");
  for (const char* other :
       {"--data", "--ids", "--length", "--sequences", "--teacher", "--task", "--recall"})
    words->excludes(app.get_option(other));
}

void LastWordsArgument::run(const fs::path& model_folder, const Device& device, bool json,
                            const Group& group) const {
  LastWords result;
  {
    ProgressBar bar;
    result = evaluate_last_words(model_folder, file_, device, bar.progress(), group);
  }
  if (!group.is_first()) return;
  remark_on_truncated("last words", result.truncated, Checkpoint(model_folder).config().context);
  if (json) return print_json(to_json(result));
  print(
      fmt::format("accuracy    {}\n"
                  "perplexity  {:.2f} a word, {:.4f} nats\n"
                  "words       {}\n",
                  percent(result.acc), result.perplexity, result.loss, grouped(result.words)));
}

}  // namespace dofla::cli
