// The fields of one JSON object of a config.json, checked as they are taken out. As in
// Transformers, null means the same as leaving the field out. Every error is an Error
// "where: field: expected …, found …".
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "dofla/core/json.h"

namespace dofla {

class ConfigFields {
 public:
  // No size may pass this. The bytes of a matrix then fit in an int64, whatever the file claims.
  static constexpr int64_t kLargestSize = int64_t{1} << 28;

  // Keeps a reference to `object`, which must outlive this.
  ConfigFields(const Json& object, std::string where);

  const std::string& where() const { return where_; }
  const Json& object() const { return object_; }
  const Json* find(std::string_view field) const;  // nullptr if it is not there or null

  bool flag(std::string_view field, bool fallback) const;
  std::optional<std::string> text(std::string_view field) const;
  std::optional<double> number(std::string_view field) const;
  double positive(std::string_view field) const;
  double positive(std::string_view field, double fallback) const;
  int64_t size(std::string_view field) const;  // from 1 to kLargestSize
  std::optional<int64_t> optional_size(std::string_view field) const;

  [[noreturn]] void refuse(std::string_view field, std::string_view reason) const;
  [[noreturn]] void unexpected(std::string_view field, std::string_view expected,
                               const Json& found) const;

 private:
  const Json& object_;
  std::string where_;
};

}  // namespace dofla
