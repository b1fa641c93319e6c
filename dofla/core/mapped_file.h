// A file in memory without a copy. Other programs may change or shorten it meanwhile: a change is
// found when asked for, a read past a new end raises SIGBUS.
#pragma once

#include <cstddef>
#include <span>

#include <sys/types.h>

#include "dofla/core/file.h"

namespace dofla {

// A read-only memory map of a whole file. Throws Error if it cannot be opened.
class MappedFile {
 public:
  explicit MappedFile(const fs::path& path);
  ~MappedFile();
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  std::span<const std::byte> bytes() const { return {data_, size_}; }

  // Throws Error if the file was written to since it was mapped: what was read of it may be a
  // mixture of two files. A file that was removed, or replaced by a rename, is still whole here.
  void require_unchanged() const;

 private:
  void close();

  fs::path path_;
  int fd_ = -1;
  const std::byte* data_ = nullptr;
  size_t size_ = 0;
  timespec modified_ = {};
};

// The path of the mapped file that holds this address, nullptr if none does. Safe to call in a
// signal handler: whoever handles SIGBUS can say which file became shorter.
const char* mapped_file_at(const void* address) noexcept;

}  // namespace dofla
