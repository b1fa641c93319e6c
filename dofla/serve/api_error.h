// What goes wrong with a request, in the form that OpenAI's clients read.
#pragma once

#include <stdexcept>
#include <string>
#include <utility>

#include <fmt/format.h>

#include "dofla/core/json.h"

namespace dofla {

class ApiError : public std::runtime_error {
 public:
  ApiError(int status, const std::string& message, std::string param = {}, std::string code = {})
      : std::runtime_error(message),
        status_(status),
        param_(std::move(param)),
        code_(std::move(code)) {}

  int status() const { return status_; }

  // {"error": {"message", "type", "param", "code"}}
  Json json() const;

 private:
  int status_;
  std::string param_;  // the field that is wrong; empty: none in particular
  std::string code_;
};

// Throws ApiError 400 about a field.
template <class... Args>
[[noreturn]] void refuse(const std::string& param, fmt::format_string<Args...> format,
                         Args&&... args) {
  throw ApiError(400, param + ": " + fmt::format(format, std::forward<Args>(args)...), param,
                 "invalid_value");
}

}  // namespace dofla
