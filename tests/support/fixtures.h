// Where the tests find their data.
#pragma once

#include "dofla/core/file.h"
#include "dofla/core/tensor.h"

namespace dofla::test {

// The folder in the environment variable DOFLA_FIXTURES, or tests/fixtures.
fs::path fixtures();

fs::path assets();  // the repository's assets/

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
