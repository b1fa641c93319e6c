// dofla: one binary, one subcommand a stage. Everything that goes wrong ends here, as one line on
// standard error: exit 1, 2 when the command line itself is wrong, 128 + N after signal N. Of
// several ranks the first one does the talking, the others are heard if they fail alone.
#include <chrono>
#include <csignal>
#include <new>
#include <optional>
#include <thread>

#include "cli/bus_error.h"
#include "cli/closest_name.h"
#include "cli/host.h"
#include "cli/interruption.h"
#include "cli/invocation.h"
#include "cli/output.h"
#include "cli/program.h"
#include "cli/usage_error.h"

namespace dofla::cli {
namespace {

constexpr int kFailed = 1;
constexpr int kWrongUsage = 2;

// The subcommand that the user was in, for messages: "dofla evaluate".
std::string invoked_name(const CLI::App& program) {
  const auto chosen = program.get_subcommands();
  return chosen.empty() ? "dofla" : "dofla " + chosen.front()->get_name();
}

// What most goes wrong on all ranks at once: the first one says it and ends all, and has this long
// to do so before another one speaks.
void let_the_first_rank_speak(const Group& group) {
  if (!group.is_first()) std::this_thread::sleep_for(std::chrono::seconds(3));
}

void print_error(const Group& group, std::string_view message) {
  let_the_first_rank_speak(group);
  const std::string rank = group.alone() ? "" : fmt::format("rank {}: ", group.rank());
  fmt::print(stderr, "dofla: {}{}\n", rank, one_line(message));
}

// Ends the program on all ranks.
int leave(const Group& group, int exit_code) {
  if (group.alone() || exit_code == 0) {
    group.leave();
    return exit_code;
  }
  let_the_first_rank_speak(group);
  group.abort(exit_code);
}

std::vector<std::string> option_names(const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::Option* option : app.get_options({}))
    for (const std::string& name : option->get_lnames()) names.push_back("--" + name);
  return names;
}

std::vector<std::string> command_names(const CLI::App& program) {
  std::vector<std::string> names;
  for (const CLI::App* command : program.get_subcommands({})) names.push_back(command->get_name());
  return names;
}

// "distil: no such command; did you mean distill? (see dofla --help)"
std::string explain_unknown_word(const CLI::App& program) {
  const auto chosen = program.get_subcommands();
  const std::string word = program.remaining(true).front();
  std::string what = "unexpected argument", meant;
  if (word.starts_with('-')) {
    what = "no such option";
    meant = closest_name(word.substr(0, word.find('=')),
                         option_names(chosen.empty() ? program : *chosen.front()));
  } else if (chosen.empty()) {
    what = "no such command";
    meant = closest_name(word, command_names(program));
  }
  if (!meant.empty()) meant = fmt::format("; did you mean {}?", meant);
  return fmt::format("{}: {}{} (see {} --help)", word, what, meant, invoked_name(program));
}

// Reads the command line. An exit code if that is all there is to do.
std::optional<int> parse(CLI::App& program, const Group& group, int argc, char** argv) {
  try {
    program.parse(argc, argv);
  } catch (const CLI::CallForHelp&) {
    print(program.help());
    return 0;
  } catch (const CLI::CallForVersion& version_text) {
    print(std::string(version_text.what()) + "\n");
    return 0;
  } catch (const CLI::ExtrasError&) {
    print_error(group, explain_unknown_word(program));
    return kWrongUsage;
  } catch (const CLI::ParseError& error) {
    print_error(group, fmt::format("{} (see {} --help)", error.what(), invoked_name(program)));
    return kWrongUsage;
  }
  if (!program.get_subcommands().empty()) return std::nullopt;
  if (group.is_first()) fmt::print(stderr, "{}", program.help());
  return kWrongUsage;
}

int run(const Group& group, int argc, char** argv) {
  const Host silent = {.print = [](std::string_view) {},
                       .remark = [](std::string_view) {},
                       .command_line = command_line()};
  std::optional<Hosted> hosted;
  if (!group.is_first()) hosted.emplace(silent);
  Program program;
  if (const std::optional<int> exit_code = parse(program.app(), group, argc, argv))
    return *exit_code;
  try {
    program.run(group);
  } catch (const UsageError& error) {
    print_error(group,
                fmt::format("{} (see {} --help)", error.what(), invoked_name(program.app())));
    return kWrongUsage;
  }
  return 0;
}

int run_and_explain(const Group& group, int argc, char** argv) {
  try {
    return run(group, argc, argv);
  } catch (const Cancelled&) {
    return interrupted_exit_code();  // the command has said what there is to say
  } catch (const std::bad_alloc&) {
    print_error(group, "out of memory");
  } catch (const std::exception& error) {
    print_error(group, error.what());
  }
  return kFailed;
}

int run_as_rank(int argc, char** argv) {
  Group group;
  try {
    group = Group::launched();
  } catch (const std::exception& error) {
    print_error(group, error.what());
    return kFailed;
  }
  return leave(group, run_and_explain(group, argc, argv));
}

}  // namespace
}  // namespace dofla::cli

int main(int argc, char** argv) {
  std::signal(SIGPIPE, SIG_DFL);  // `dofla … | head` ends quietly, whatever the parent set
  dofla::cli::handle_signals();
  dofla::cli::explain_bus_errors();
  dofla::cli::remember_command_line(argc, argv);
  return dofla::cli::run_as_rank(argc, argv);
}
