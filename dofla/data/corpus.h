// Documents of text files, one at a time: memory depends on the longest document, never on the
// size of a file.
//
// Text is UTF-8 and is handed on as it stands. Blank lines of a .jsonl file and empty documents
// are passed over.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "dofla/data/text_files.h"

namespace dofla {

struct DocumentOptions {
  // The most bytes that a line of a .jsonl file and a .txt document may have: a small compressed
  // file can claim any length, and tokens take several times the memory of their text.
  size_t longest_line = size_t{64} << 20;
  size_t longest_text = size_t{128} << 20;
  // Lines that are no document, or no UTF-8, or too long are left out and counted.
  bool skip_bad_lines = false;
};

struct SkippedLines {
  int64_t count = 0;
  std::string first;  // where the first of them is and what is wrong with it
};

class DocumentReader {
 public:
  // Files are opened when their turn comes.
  explicit DocumentReader(TextFiles files, const DocumentOptions& options = {});

  // The next document, or nothing after the last one of the last file. Throws Error
  // "file:line: …" on a line that is no object with a text, on invalid UTF-8, on a line or document
  // that is too long; "file: …" on a file without a document or with a broken stream.
  std::optional<std::string> next();

  const SkippedLines& skipped() const { return skipped_; }  // so far
  size_t files_opened() const { return next_file_; }        // so far

 private:
  void open_next_file();
  // Without its end; false at the end of the file. A line that is too long and to be left out
  // comes as an empty one.
  bool read_line(std::string& line);
  std::optional<std::string> next_in_file();
  std::optional<std::string> whole_text();
  void drop_bad_lines(std::string& text);    // of a .txt file
  void bad_line(const std::string& defect);  // throws, or counts it
  std::string here() const;                  // "file:line"

  TextFiles files_;
  DocumentOptions options_;
  SkippedLines skipped_;
  size_t next_file_ = 0;
  size_t file_ = 0;   // the one being read
  ByteReader bytes_;  // empty: no file is open
  std::vector<char> buffer_;
  size_t begin_ = 0;  // buffer_[begin_, end_) is read but not yet used
  size_t end_ = 0;
  int64_t line_ = 0;
  int64_t documents_ = 0;  // found in this file
};

}  // namespace dofla
