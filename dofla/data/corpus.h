// Documents of text files, one at a time: memory depends on the longest document, never on the
// size of a file.
//
//   .txt              the whole file is one document
//   .jsonl            every line is an object whose "text" is one document; other fields are
//   ignored .txt.zst .jsonl.gz …  the same, compressed
//
// Text is UTF-8 and is handed on as it stands. Blank lines of a .jsonl file and empty documents
// are passed over.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "dofla/data/byte_reader.h"

namespace dofla {

class DocumentReader {
 public:
  // The most bytes that a line or a .txt document may have: a small compressed file can claim any
  // length.
  static constexpr size_t kLongest = size_t{256} << 20;

  // Throws Error at once if a name has none of the endings above. Files are opened when their
  // turn comes.
  explicit DocumentReader(std::vector<fs::path> files, size_t longest = kLongest);

  // The next document, or nothing after the last one of the last file. Throws Error
  // "file:line: …" on a line that is no such object, on invalid UTF-8, on a line or document
  // longer than `longest`; "file: …" on a file without a document or with a broken stream.
  std::optional<std::string> next();

 private:
  void open_next_file();
  bool read_line(std::string& line);  // without its end; false at the end of the file
  std::optional<std::string> next_in_file();
  std::optional<std::string> whole_text();
  std::string here() const;  // "file:line"

  std::vector<fs::path> files_;
  size_t longest_;
  size_t next_file_ = 0;
  fs::path path_;     // of the file being read
  ByteReader bytes_;  // empty: no file is open
  std::vector<char> buffer_;
  size_t begin_ = 0;  // buffer_[begin_, end_) is read but not yet used
  size_t end_ = 0;
  int64_t line_ = 0;
  int64_t documents_ = 0;  // found in this file
};

}  // namespace dofla
