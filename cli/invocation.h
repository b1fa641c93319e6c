// The command line that the program was started with.
#pragma once

#include <string>
#include <vector>

namespace dofla::cli {

void remember_command_line(int argc, const char* const* argv);  // called once, by main

// As it could be given to a shell again; elsewhere than in the program, that of the host.
std::string command_line();

std::string command_line_of(const std::vector<std::string>& words);  // those after the program

}  // namespace dofla::cli
