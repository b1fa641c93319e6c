// Keeps other processes away from something for as long as it lives.
#pragma once

#include <string>

#include "dofla/core/file.h"

namespace dofla {

// An advisory lock on a file of its own, which is made and in the end removed. When the process
// ends, however it ends, the kernel lets go of the lock; a file that it left behind locks nobody
// out.
class FileLock {
 public:
  // `what` is what the lock protects, for the message. Throws Error naming the other process if it
  // is taken.
  FileLock(const fs::path& file, const std::string& what);
  ~FileLock();
  FileLock(const FileLock&) = delete;
  FileLock& operator=(const FileLock&) = delete;

 private:
  fs::path file_;
  int fd_ = -1;
};

}  // namespace dofla
