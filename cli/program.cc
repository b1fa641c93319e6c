#include "cli/program.h"

#include <algorithm>
#include <cstdlib>
#include <memory>

#include <omp.h>

#include "cli/invocation.h"
#include "cli/usage_error.h"
#include "dofla/core/version.h"
#include "dofla/distributed/agreement.h"
#include "dofla/distributed/placement.h"

namespace dofla::cli {
namespace {

// Help without the parser's notes on which option excludes which: messages say that when it
// matters.
class HelpFormatter : public CLI::Formatter {
 public:
  HelpFormatter() {
    column_width(26);
    label("SUBCOMMAND", "COMMAND");
  }
  std::string make_option_opts(const CLI::Option* option) const override {
    std::string text;
    if (!option->get_type_name().empty()) text += " " + option->get_type_name();
    if (!option->get_default_str().empty()) text += " = " + option->get_default_str();
    return text;
  }
};

void describe(CLI::App& program) {
  program.formatter(std::make_shared<HelpFormatter>());
  program.set_help_flag("-h,--help", "show this help");
  program.set_version_flag("--version", fmt::format("dofla {}", version()), "show the version");
  program.require_subcommand(0, 1);
  program.fallthrough();  // the program's own options may stand after the command too
  program.footer(
      "Example:\n  dofla generate --prompt \"The river flows\"\n\n"
      "Every command has a --help with an example. Without MODEL it uses the built-in wiki-mini.");
}

}  // namespace

Program::Program()
    : app_(
          "Degrees of freedom for linear attention: measure how many features each attention head "
          "needs,\nand turn a softmax transformer into a linear one.",
          "dofla") {
  describe(app_);
  app_.add_option("--threads", threads_, "threads to use (default: one a core, of ranks together)")
      ->type_name("N")
      ->check(whole_between(1, 4096));
  commands_ = {add_inspect(app_),   add_tokenize(app_), add_dof(app_),      add_sensitivity(app_),
               add_plan(app_),      add_distill(app_),  add_teach(app_),    add_finetune(app_),
               add_reproduce(app_), add_report(app_),   add_evaluate(app_), add_compare(app_),
               add_quantize(app_),  add_estimate(app_), add_generate(app_), add_chat(app_),
               add_serve(app_)};
  for (CLI::App* command : app_.get_subcommands({})) command->group("Commands");
}

void Program::run(const Group& group) {
  for (const Command& command : commands_)
    if (command.app->parsed()) run(command, group);
}

void Program::run(const Command& command, const Group& group) const {
  require_same(group, {{"version", version()}, {"command line", command_line()}});
  if (threads_ > 0)
    omp_set_num_threads(threads_);
  else if (!group.alone() && std::getenv("OMP_NUM_THREADS") == nullptr)
    omp_set_num_threads(threads_of_rank(group));
  if (command.share) return command.share(group);
  if (group.size() > 1)
    throw UsageError(fmt::format("{} is done by one process, and {} were started: leave mpirun out",
                                 command.app->get_name(), group.size()));
  command.run();
}

void parse(CLI::App& app, const std::vector<std::string>& words) {
  try {
    app.parse(std::vector<std::string>(words.rbegin(), words.rend()));
  } catch (const CLI::ParseError& error) {
    throw UsageError(error.what());
  }
}

}  // namespace dofla::cli
