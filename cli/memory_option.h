// --memory and its like: a number of bytes, such as 3MB.
#pragma once

#include <optional>
#include <string>

#include <CLI/CLI.hpp>

namespace dofla::cli {

CLI::Option* add_memory(CLI::App& app, std::optional<int64_t>& bytes, const std::string& help,
                        const std::string& name = "--memory");

}  // namespace dofla::cli
