// Arguments that are right one by one and contradict each other: wrong usage, exit code 2.
#pragma once

#include <stdexcept>

namespace dofla::cli {

class UsageError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// What `make` makes of arguments. What the library calls misuse is then the user's.
template <class Make>
auto from_arguments(const Make& make) {
  try {
    return make();
  } catch (const std::invalid_argument& error) {
    throw UsageError(error.what());
  }
}

}  // namespace dofla::cli
