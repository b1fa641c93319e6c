// What a teacher says of a text, kept on disk so that students learn from it without the teacher:
// for every token of every window the k likeliest next ones, with their probabilities, and the mass
// of all others together. docs/finetune.md says what is lost by that.
//
// A file is a header in JSON, with its length before and its hash behind it, and one block a
// window, all of one size: k tokens, k + 1 logarithms for each of its positions, a hash of the
// window's ids and one of the block. Tokens take 2 bytes (4 in vocabularies of more than 65,536),
// logarithms 2.
#pragma once

#include <span>
#include <vector>

#include "dofla/core/file.h"
#include "dofla/core/json.h"
#include "dofla/data/byte_reader.h"
#include "dofla/data/windows.h"

namespace dofla {

// The distributions of some rows, each of which sums to 1 with its rest.
struct TopTokens {
  int64_t top = 0;                          // k
  std::vector<int32_t> tokens = {};         // [R, k]
  std::vector<float> log_probability = {};  // [R, k]
  std::vector<float> log_rest = {};         // [R]; −∞ where nothing is left

  int64_t rows() const { return std::ssize(log_rest); }
};

struct TeacherFileHeader {
  int64_t windows = 0, length = 0;  // tokens of a window
  int64_t vocabulary = 0, top = 0;
  Json about = Json::object();  // what tells it from others: fingerprints of model, text, tokenizer
};

// Appears whole, with commit(), or not at all.
class TeacherFileWriter {
 public:
  TeacherFileWriter(const fs::path& path, const TeacherFileHeader& header);

  // The next window: as many rows as it has tokens.
  void append(const TokenIds& ids, const TopTokens& rows);
  void commit();

 private:
  TeacherFileHeader header_;
  WholeFile file_;
  int64_t written_ = 0;  // windows
};

// Any number of threads may read.
class TeacherFile {
 public:
  // Throws Error if this is no such file, or not all of one.
  explicit TeacherFile(const fs::path& path);

  const TeacherFileHeader& header() const { return header_; }
  const std::string& name() const { return file_.name(); }

  // Throws Error unless the first windows of the file are these.
  void require_windows(const WindowSet& windows) const;

  // The rows of windows, one after the other. Throws Error if a block is damaged.
  TopTokens read(std::span<const int64_t> which) const;

 private:
  void read_at(std::span<char> to, int64_t from) const;

  OpenFile file_;
  TeacherFileHeader header_;
  int64_t first_block_ = 0;  // where it begins
};

}  // namespace dofla
