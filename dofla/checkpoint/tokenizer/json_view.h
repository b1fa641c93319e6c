// A JSON value that knows where it stands, so that every complaint names the place.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "dofla/core/error.h"
#include "dofla/core/json.h"

namespace dofla {

class JsonView {
 public:
  JsonView(const Json& value, std::string where) : value_(&value), where_(std::move(where)) {}

  const std::string& where() const { return where_; }
  bool is_null() const { return value_->is_null(); }
  bool is_array() const { return value_->is_array(); }

  bool has(std::string_view name) const;             // present, and not null
  JsonView operator[](std::string_view name) const;  // Error unless an object with this member
  std::vector<JsonView> elements() const;            // Error unless an array
  std::vector<JsonView> elements(std::string_view name) const { return (*this)[name].elements(); }

  std::string text() const;  // Error unless a string
  bool flag() const;         // Error unless true or false
  int64_t integer() const;   // Error unless an integer that fits
  std::string text(std::string_view name) const { return (*this)[name].text(); }
  int64_t integer(std::string_view name) const { return (*this)[name].integer(); }
  bool flag(std::string_view name, bool otherwise) const {
    return has(name) ? (*this)[name].flag() : otherwise;
  }

  // Throws Error "where: message".
  template <class... Args>
  [[noreturn]] void refuse(fmt::format_string<Args...> format, Args&&... args) const {
    fail("{}: {}", where_, fmt::format(format, std::forward<Args>(args)...));
  }

 private:
  [[noreturn]] void refuse_type(std::string_view expected) const;

  const Json* value_;
  std::string where_;
};

}  // namespace dofla
