// The names of an enum's values, as files, options and messages spell them. An enum that has names
// lists them once, beside its definition:
//
//   template <>
//   struct Names<Colour> {
//     static constexpr std::string_view kWhat = "colour";
//     static constexpr std::array kAll = {Name{Colour::kRed, "red"}, Name{Colour::kBlue, "blue"}};
//   };
#pragma once

#include <array>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "dofla/core/error.h"

namespace dofla {

template <class Enum>
struct Name {
  Enum value;
  std::string_view text;
};
// Compilers before C++20's rule for aggregates (clang 14) need to be told.
template <class Enum>
Name(Enum, std::string_view) -> Name<Enum>;

template <class Enum>
struct Names;

template <class Enum>
concept Named = requires {
  Names<Enum>::kAll;
};

template <Named Enum>
constexpr std::string_view name(Enum value) {
  for (const Name<Enum>& known : Names<Enum>::kAll)
    if (known.value == value) return known.text;
  return "?";  // no enumerator: a number was cast to the enum
}

template <Named Enum>
std::optional<Enum> find_named(std::string_view text) {
  for (const Name<Enum>& known : Names<Enum>::kAll)
    if (known.text == text) return known.value;
  return std::nullopt;
}

template <Named Enum>
std::vector<std::string> all_names() {
  std::vector<std::string> texts;
  texts.reserve(Names<Enum>::kAll.size());
  for (const Name<Enum>& known : Names<Enum>::kAll) texts.emplace_back(known.text);
  return texts;
}

std::string one_of(const std::vector<std::string>& choices);  // "a, b or c"

// All names of the enum as a phrase: "prf, performer or dijiang".
template <Named Enum>
std::string one_of_names() {
  return one_of(all_names<Enum>());
}

// The value of that name. Throws std::invalid_argument that lists the names if there is none.
template <Named Enum>
Enum named(std::string_view text) {
  const std::optional<Enum> value = find_named<Enum>(text);
  require(value.has_value(), "no {} is called {}; expected {}", Names<Enum>::kWhat, text,
          one_of_names<Enum>());
  return *value;
}

}  // namespace dofla
