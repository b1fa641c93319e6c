#include "dofla/checkpoint/config_fields.h"

#include <cmath>
#include <utility>

#include "dofla/core/error.h"

namespace dofla {

ConfigFields::ConfigFields(const Json& object, std::string where)
    : object_(object), where_(std::move(where)) {
  if (!object_.is_object()) fail("{}: expected a JSON object, found {}", where_, excerpt(object_));
}

const Json* ConfigFields::find(std::string_view field) const {
  const auto found = object_.find(field);
  return found == object_.end() || found->is_null() ? nullptr : &*found;
}

bool ConfigFields::flag(std::string_view field, bool fallback) const {
  const Json* value = find(field);
  if (value == nullptr) return fallback;
  if (!value->is_boolean()) unexpected(field, "true or false", *value);
  return value->get<bool>();
}

std::optional<std::string> ConfigFields::text(std::string_view field) const {
  const Json* value = find(field);
  if (value == nullptr) return std::nullopt;
  if (!value->is_string()) unexpected(field, "a string", *value);
  return value->get<std::string>();
}

std::optional<double> ConfigFields::number(std::string_view field) const {
  const Json* value = find(field);
  if (value == nullptr) return std::nullopt;
  if (!value->is_number()) unexpected(field, "a number", *value);
  return value->get<double>();
}

double ConfigFields::positive(std::string_view field) const {
  const auto value = number(field);
  if (!value) refuse(field, "missing");
  if (!(*value > 0 && std::isfinite(*value))) unexpected(field, "a positive number", *find(field));
  return *value;
}

double ConfigFields::positive(std::string_view field, double fallback) const {
  return find(field) == nullptr ? fallback : positive(field);
}

int64_t ConfigFields::size(std::string_view field) const {
  const auto value = optional_size(field);
  if (!value) refuse(field, "missing");
  return *value;
}

std::optional<int64_t> ConfigFields::optional_size(std::string_view field) const {
  const Json* value = find(field);
  if (value == nullptr) return std::nullopt;
  const bool sound = value->is_number_integer() && *value >= 1 && *value <= kLargestSize;
  if (!sound) unexpected(field, fmt::format("an integer from 1 to {}", kLargestSize), *value);
  return value->get<int64_t>();
}

void ConfigFields::refuse(std::string_view field, std::string_view reason) const {
  fail("{}: {}: {}", where_, field, reason);
}

void ConfigFields::unexpected(std::string_view field, std::string_view expected,
                              const Json& found) const {
  refuse(field, fmt::format("expected {}, found {}", expected, excerpt(found)));
}

}  // namespace dofla
