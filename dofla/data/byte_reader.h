// The bytes of a file as a stream, decompressed on the way.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <span>
#include <string>

#include "dofla/core/file.h"

namespace dofla {

// A file open for reading. Throws Error if it cannot be opened or read.
class OpenFile {
 public:
  explicit OpenFile(const fs::path& path);
  OpenFile(int fd, std::string name) : fd_(fd), name_(std::move(name)) {}  // takes it over
  ~OpenFile();
  OpenFile(const OpenFile&) = delete;
  OpenFile& operator=(const OpenFile&) = delete;

  size_t read(std::span<char> to) const;                    // from where it is; 0 at the end
  size_t read_at(std::span<char> to, uint64_t from) const;  // not of a pipe
  void write(std::span<const char> from) const;             // where it is open for that
  int fd() const { return fd_; }
  const std::string& name() const { return name_; }

 private:
  int fd_;
  std::string name_;
};

// A temporary file that nobody else can open and that is gone when it is closed, whatever ends the
// program. Open for reading and writing; `purpose` is a word for messages.
std::shared_ptr<const OpenFile> unnamed_file(const std::string& purpose);

// Fills `to` from its start and returns how many bytes it wrote; 0 only at the end of the file.
// Throws Error, naming the file, on a read error or on a corrupt or truncated compressed stream.
using ByteReader = std::function<size_t(std::span<char> to)>;

enum class Compression { kNone, kZstd, kGzip };

// The file from its beginning, whoever else reads it. Memory is bounded whatever it claims: a zstd
// window of more than 128 MB is refused. Errors begin with `name`.
ByteReader open_bytes(std::shared_ptr<const OpenFile> file, Compression compression,
                      const std::string& name);

}  // namespace dofla
