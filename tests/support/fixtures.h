// Where the tests find their data.
#pragma once

#include <string>
#include <vector>

#include "dofla/core/file.h"
#include "dofla/core/tensor.h"

namespace dofla::test {

// The folder in the environment variable DOFLA_FIXTURES, or tests/fixtures.
fs::path fixtures();

// The folders in fixtures() that hold a model with its expected values, sorted by name.
std::vector<std::string> fixture_models();

fs::path assets();        // the repository's assets/
fs::path tests_folder();  // its tests/

// A fresh empty folder, removed when the object goes.
class ScratchFolder {
 public:
  ScratchFolder();
  ~ScratchFolder();
  ScratchFolder(const ScratchFolder&) = delete;
  ScratchFolder& operator=(const ScratchFolder&) = delete;
  const fs::path& path() const { return path_; }

 private:
  fs::path path_;
};

}  // namespace dofla::test
