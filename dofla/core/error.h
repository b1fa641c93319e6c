// How dofla reports failure: std::invalid_argument for misuse by the caller, dofla::Error for
// everything the outside world does to us (files, disks, devices). Nothing here prints or exits.
#pragma once

#include <stdexcept>
#include <string>
#include <utility>

#include <fmt/format.h>

namespace dofla {

class Error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// Throws Error. A message says what, where, what was expected and what was found:
//   fail("{}: {}: expected {}, found {}", path, tensor, wanted, shape);
template <class... Args>
[[noreturn]] void fail(fmt::format_string<Args...> format, Args&&... args) {
  throw Error(fmt::format(format, std::forward<Args>(args)...));
}

// Throws std::invalid_argument unless the caller kept its side of the contract. The message is made
// only then; its arguments are evaluated in any case, so that a shape is given as it is
// (fmt/ranges.h) and not as text where this is reached for every token.
template <class... Args>
void require(bool condition, fmt::format_string<Args...> format, Args&&... args) {
  if (!condition) throw std::invalid_argument(fmt::format(format, std::forward<Args>(args)...));
}

}  // namespace dofla
