// The commands of the program as Python sees them: what options they have, and how they are run.
#include <omp.h>
#include <pybind11/stl.h>

#include "cli/host.h"
#include "cli/invocation.h"
#include "cli/program.h"
#include "python/work.h"

namespace py = pybind11;

namespace dofla::python {
namespace {

bool has_check(CLI::Option& option, const char* name) {
  try {
    return option.get_validator(name) != nullptr;
  } catch (const CLI::OptionNotFound&) {
    return false;
  }
}

py::dict describe(CLI::Option& option) {
  py::dict out;
  const bool positional = option.get_positional();
  out["name"] = positional ? option.get_name(true) : option.get_lnames().front();
  out["positional"] = positional;
  out["help"] = option.get_description();
  out["type"] = option.get_type_name();  // "F", or "NAME:{causal,full}"
  out["number"] = has_check(option, cli::kWholeNumber)  ? "int"
                  : has_check(option, cli::kRealNumber) ? "float"
                                                        : "";
  out["default"] = option.get_default_str();
  out["required"] = option.get_required();
  out["flag"] = option.get_items_expected_max() == 0;
  out["many"] = option.get_items_expected_max() > 1 ||
                option.get_multi_option_policy() == CLI::MultiOptionPolicy::TakeAll;
  out["delimiter"] = option.get_delimiter() == '\0' ? "" : std::string(1, option.get_delimiter());
  return out;
}

// What every command is and takes, without --help and --json, with the program's --threads.
py::dict describe_commands() {
  cli::Program program;
  py::dict out;
  for (CLI::App* command : program.app().get_subcommands({})) {
    py::list options;
    for (CLI::Option* option : command->get_options({}))
      if (option != command->get_help_ptr() && !option->check_lname("json"))
        options.append(describe(*option));
    options.append(describe(*program.app().get_option("--threads")));
    out[py::str(command->get_name())] = py::make_tuple(command->get_description(), options);
  }
  return out;
}

// --threads is of one command here, not of the program.
class ThreadsRestored {
 public:
  ThreadsRestored() = default;
  ~ThreadsRestored() { omp_set_num_threads(before_); }
  ThreadsRestored(const ThreadsRestored&) = delete;
  ThreadsRestored& operator=(const ThreadsRestored&) = delete;

 private:
  const int before_ = omp_get_max_threads();
};

// Runs a command and returns what it prints.
std::string run(const std::vector<std::string>& words, const py::object& progress,
                const py::function& remark) {
  std::string printed;
  Listener listener(progress);
  const cli::Host host = {.print = [&](std::string_view text) { printed += text; },
                          .remark =
                              [&](std::string_view line) {
                                const Interpreter interpreter;
                                remark(py::bytes(line.data(), line.size()));
                              },
                          .progress = listener.progress(),
                          .command_line = cli::command_line_of(words)};
  try {
    const Work work;
    const ThreadsRestored threads;
    const cli::Hosted hosted(host);
    cli::Program program;
    cli::parse(program.app(), words);
    program.run();
  } catch (const Cancelled&) {
    listener.rethrow();
    throw;
  }
  listener.rethrow();
  return printed;
}

}  // namespace

void add_commands(py::module_& module) {
  module.def("commands", &describe_commands);
  module.def("run", &run);
}

}  // namespace dofla::python
