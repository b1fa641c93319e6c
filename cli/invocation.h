// The command line that the program was started with.
#pragma once

#include <string>
#include <string_view>

namespace dofla::cli {

void remember_command_line(int argc, const char* const* argv);  // called once, by main

// As it could be given to a shell again.
std::string command_line();

std::string shell_quoted(std::string_view argument);

}  // namespace dofla::cli
