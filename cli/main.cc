// dofla: one binary, one subcommand a stage. Everything that goes wrong ends here, as one line on
// standard error: exit 1, 2 when the command line itself is wrong, 128 + N after signal N.
#include <csignal>
#include <memory>
#include <new>
#include <optional>

#include <omp.h>

#include "cli/bus_error.h"
#include "cli/command.h"
#include "cli/interruption.h"
#include "cli/invocation.h"
#include "cli/output.h"
#include "cli/usage_error.h"
#include "dofla/core/error.h"
#include "dofla/core/version.h"

namespace dofla::cli {
namespace {

constexpr int kFailed = 1;
constexpr int kWrongUsage = 2;

// The subcommand that the user was in, for messages: "dofla evaluate".
std::string invoked_name(const CLI::App& program) {
  const auto chosen = program.get_subcommands();
  return chosen.empty() ? "dofla" : "dofla " + chosen.front()->get_name();
}

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

void complain(std::string_view message) {
  remark("dofla: " + one_line(message));
}

void describe(CLI::App& program) {
  program.formatter(std::make_shared<HelpFormatter>());
  program.set_help_flag("-h,--help", "show this help");
  program.set_version_flag("--version", fmt::format("dofla {}", version()), "show the version");
  program.require_subcommand(0, 1);
  program.fallthrough();  // the program's own options may stand after the command too
  program.footer(
      "Example:\n  dofla generate --prompt \"The river flows\"\n\n"
      "Every command has a --help with an example. A MODEL that is left out is the built-in "
      "wiki-mini.");
}

// Reads the command line. An exit code if that is all there is to do.
std::optional<int> parse(CLI::App& program, int argc, char** argv) {
  try {
    program.parse(argc, argv);
  } catch (const CLI::CallForHelp&) {
    print(program.help());
    return 0;
  } catch (const CLI::CallForVersion& version_text) {
    print(std::string(version_text.what()) + "\n");
    return 0;
  } catch (const CLI::ExtrasError&) {
    complain(fmt::format("{}: no such {} (see {} --help)", program.remaining(true).front(),
                         program.get_subcommands().empty() ? "command" : "argument",
                         invoked_name(program)));
    return kWrongUsage;
  } catch (const CLI::ParseError& error) {
    complain(fmt::format("{} (see {} --help)", error.what(), invoked_name(program)));
    return kWrongUsage;
  }
  if (!program.get_subcommands().empty()) return std::nullopt;
  fmt::print(stderr, "{}", program.help());
  return kWrongUsage;
}

int run(int argc, char** argv) {
  CLI::App program(
      "Degrees of freedom for linear attention: measure how many features each attention head "
      "needs,\nand turn a softmax transformer into a linear one.",
      "dofla");
  describe(program);
  int threads = 0;
  program.add_option("--threads", threads, "threads to use (left out: one a core)")
      ->type_name("N")
      ->check(whole_between(1, 4096));
  const std::vector<Command> commands = {
      add_inspect(program), add_tokenize(program), add_dof(program),      add_sensitivity(program),
      add_plan(program),    add_distill(program),  add_finetune(program), add_reproduce(program),
      add_report(program),  add_evaluate(program), add_compare(program),  add_generate(program),
      add_chat(program),    add_serve(program)};
  for (CLI::App* app : program.get_subcommands({})) app->group("Commands");
  if (const std::optional<int> exit_code = parse(program, argc, argv)) return *exit_code;
  if (threads > 0) omp_set_num_threads(threads);
  try {
    for (const Command& command : commands)
      if (command.app->parsed()) command.run();
  } catch (const UsageError& error) {
    complain(fmt::format("{} (see {} --help)", error.what(), invoked_name(program)));
    return kWrongUsage;
  }
  return 0;
}

}  // namespace
}  // namespace dofla::cli

int main(int argc, char** argv) {
  std::signal(SIGPIPE, SIG_DFL);  // `dofla … | head` ends quietly, whatever the parent set
  dofla::cli::handle_signals();
  dofla::cli::explain_bus_errors();
  dofla::cli::remember_command_line(argc, argv);
  try {
    return dofla::cli::run(argc, argv);
  } catch (const dofla::Cancelled&) {
    return dofla::cli::interrupted_exit_code();  // the command has said what there is to say
  } catch (const std::bad_alloc&) {
    dofla::cli::complain("out of memory");
  } catch (const std::exception& error) {
    dofla::cli::complain(error.what());
  }
  return dofla::cli::kFailed;
}
