// Options whose value is one of the names of an enum.
#pragma once

#include <optional>
#include <string>

#include <CLI/CLI.hpp>

#include "dofla/core/names.h"

namespace dofla::cli {

// `value` may be an enum that holds its default already, which the help shows, or an optional one.
template <Named Enum, class Value>
CLI::Option* add_choice_of(CLI::App& app, const char* option, Value& value,
                           const std::string& help) {
  const auto set = [&value](const std::string& text) { value = named<Enum>(text); };
  return app.add_option_function<std::string>(option, set, help)
      ->type_name("NAME")
      ->check(CLI::IsMember(all_names<Enum>()));
}

template <Named Enum>
CLI::Option* add_choice(CLI::App& app, const char* option, Enum& value, const std::string& help) {
  return add_choice_of<Enum>(app, option, value, help)->default_str(std::string(name(value)));
}

template <Named Enum>
CLI::Option* add_choice(CLI::App& app, const char* option, std::optional<Enum>& value,
                        const std::string& help) {
  return add_choice_of<Enum>(app, option, value, help);
}

}  // namespace dofla::cli
