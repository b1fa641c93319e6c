// Token sequences for evaluation and training.
//
// Protocol. Documents are encoded one by one and joined by the end-of-text token (between
// documents, not before the first or after the last). The stream is cut into windows of `length`
// tokens that do not overlap; the last one is kept, shorter, if it has at least 2 tokens. A model
// sees each window on its own, so the first token of a window is never predicted: a window of n
// tokens has n − 1 predictions.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string_view>
#include <vector>

#include "dofla/core/tensor.h"
#include "dofla/data/corpus.h"

namespace dofla {

using TokenIds = std::vector<int64_t>;
using Encode = std::function<TokenIds(std::string_view text)>;

struct WindowOptions {
  int64_t length = 0;                  // tokens of a window, at least 2
  std::optional<int64_t> end_of_text;  // the token between documents
  int64_t most = 0;                    // stop after so many windows; 0: no limit
  int64_t vocabulary = 0;              // ids must lie in [0, vocabulary); 0: not checked
  DocumentOptions documents = {};
};

// The windows of some files, one at a time and without holding more than a document.
class WindowReader {
 public:
  WindowReader(TextFiles files, Encode encode, const WindowOptions& options);

  // Puts the next window into `window`; false after the last one. Throws Error as DocumentReader
  // does, if all the files together hold fewer than 2 tokens, if there are several documents but no
  // end-of-text token to join them, and on an id outside the vocabulary.
  bool next(TokenIds& window);

  const SkippedLines& skipped() const { return documents_.skipped(); }  // so far

 private:
  bool append_document();

  DocumentReader documents_;
  Encode encode_;
  WindowOptions options_;
  TokenIds pending_;  // pending_[begin_, end) is not yet handed out
  size_t begin_ = 0;
  int64_t windows_ = 0;
  bool started_ = false;
};

struct SequenceLimits {
  int64_t vocabulary = 0;  // every id lies in [0, vocabulary)
  int64_t shortest = 1;    // tokens
  int64_t longest = 0;
  bool same_length = false;  // all sequences have the length of the first, as training needs them
};

// Sequences of ids from a JSON file or a pipe, [[1, 2, 3], [4, 5]]; a flat [1, 2, 3] is one
// sequence. Throws Error naming the file, the sequence and the token if anything else is found.
std::vector<TokenIds> read_ids(const fs::path& path, const SequenceLimits& limits);

// Tells texts apart.
std::string fingerprint_of(const std::vector<TokenIds>& sequences);

// One sequence as the model takes it: [1, T] in I64.
Tensor to_tensor(const TokenIds& ids);

// The numbers [0, count) in an order of their own for every (seed, pass).
std::vector<int64_t> shuffled_order(int64_t count, uint64_t seed, int64_t pass);

// Batches of equally long windows for training. Every pass over the windows is a fresh shuffle,
// and batch number `step` takes the next `batch` windows of those passes laid end to end: it is a
// function of (seed, step) alone, so that a run resumed at any step sees what the whole run saw.
class ShuffledBatches {
 public:
  ShuffledBatches(std::vector<TokenIds> windows, int64_t batch, uint64_t seed);

  Tensor at(int64_t step);  // [batch, length] in I64
  int64_t windows() const { return static_cast<int64_t>(windows_.size()); }

 private:
  std::vector<TokenIds> windows_;
  int64_t batch_;
  uint64_t seed_;
  std::vector<int64_t> order_;  // of pass `pass_`
  int64_t pass_ = -1;
};

}  // namespace dofla
