#include "cli/invocation.h"

#include <algorithm>
#include <cctype>

#include "cli/host.h"

namespace dofla::cli {
namespace {

std::string remembered;

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

}  // namespace

std::string command_line_of(const std::vector<std::string>& words) {
  std::string line = "dofla";
  for (const std::string& word : words) line += " " + shell_quoted(word);
  return line;
}

void remember_command_line(int argc, const char* const* argv) {
  remembered = command_line_of({argv + std::min(argc, 1), argv + argc});
}

std::string command_line() {
  const Host* host = current_host();
  return host != nullptr ? host->command_line : remembered;
}

}  // namespace dofla::cli
