// --memory and its like: a number of bytes, such as 3MB. And what goes with --memory:
// --recall-share.
#pragma once

#include <optional>
#include <string>

#include <CLI/CLI.hpp>

namespace dofla::cli {

CLI::Option* add_memory(CLI::App& app, std::optional<int64_t>& bytes, const std::string& help,
                        const std::string& name = "--memory");

// How much of a plan for a memory is for what stood far back.
CLI::Option* add_recall_share(CLI::App& app, std::optional<double>& share, CLI::Option* memory);

}  // namespace dofla::cli
