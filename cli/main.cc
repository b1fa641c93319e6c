// dofla: one binary, one subcommand a stage. Everything that goes wrong ends here, as one line on
// standard error: exit 1, 2 when the command line itself is wrong, 128 + N after signal N.
#include <csignal>
#include <new>
#include <optional>

#include "cli/bus_error.h"
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

void complain(std::string_view message) {
  remark("dofla: " + one_line(message));
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
  Program program;
  if (const std::optional<int> exit_code = parse(program.app(), argc, argv)) return *exit_code;
  try {
    program.run();
  } catch (const UsageError& error) {
    complain(fmt::format("{} (see {} --help)", error.what(), invoked_name(program.app())));
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
