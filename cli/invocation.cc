#include "cli/invocation.h"

#include <cctype>

namespace dofla::cli {
namespace {

std::string remembered;

}  // namespace

std::string shell_quoted(std::string_view argument) {
  constexpr std::string_view kPlain = "_@%+=:,./-";
  bool plain = !argument.empty();
  for (const char c : argument)
    plain = plain &&
            (std::isalnum(static_cast<unsigned char>(c)) != 0 || kPlain.find(c) != kPlain.npos);
  if (plain) return std::string(argument);
  std::string quoted = "'";
  for (const char c : argument) quoted += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return quoted + "'";
}

void remember_command_line(int argc, const char* const* argv) {
  remembered = "dofla";
  for (int i = 1; i < argc; ++i) remembered += " " + shell_quoted(argv[i]);
}

std::string command_line() {
  return remembered;
}

}  // namespace dofla::cli
