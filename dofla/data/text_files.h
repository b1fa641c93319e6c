// The files that a text is read from, as often as needed: what comes through a pipe is kept in a
// temporary file without a name, on disk and up to a limit.
//
//   .txt              the whole file is one document
//   .jsonl            every line is an object whose "text" is one document; other fields are
//                     ignored
//   .txt.zst, …       the same, compressed
//   a folder          all of these in it and in its folders, in the order of their names
//   wiki-*.jsonl      all that match, in the order of their names
//
// The content of a pipe shows what it is: zstd and gzip have a signature, and .jsonl begins with
// a brace.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "dofla/data/byte_reader.h"

namespace dofla {

enum class TextKind { kText, kJsonLines };

class TextFiles {
 public:
  // The most bytes that are taken from a pipe.
  static constexpr uint64_t kLongestPipe = uint64_t{16} << 30;

  // Reads pipes to their end; other files are opened by open(). Throws Error at once if a name has
  // none of the endings above, if a folder or a pattern stands for no file, or if a pipe is longer
  // than `longest_pipe`.
  TextFiles(const std::vector<fs::path>& paths,  // NOLINT(google-explicit-constructor)
            uint64_t longest_pipe = kLongestPipe);
  TextFiles(std::initializer_list<fs::path> paths) : TextFiles(std::vector<fs::path>(paths)) {}

  size_t count() const { return files_.size(); }
  const std::string& name(size_t i) const { return files_[i].name; }
  TextKind kind(size_t i) const { return files_[i].kind; }
  Compression compression(size_t i) const { return files_[i].compression; }
  ByteReader open(size_t i) const;                      // from its beginning, decompressed
  std::shared_ptr<const OpenFile> raw(size_t i) const;  // as it lies on disk

 private:
  struct File {
    std::string name;
    TextKind kind = TextKind::kText;
    Compression compression = Compression::kNone;
    std::shared_ptr<const OpenFile> kept;  // what came through a pipe
  };
  static File from_name(const fs::path& path);
  static File from_pipe(const fs::path& path, uint64_t longest);

  std::vector<File> files_;
};

}  // namespace dofla
