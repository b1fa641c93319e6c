// Token sequences for evaluation and training.
#pragma once

#include <cstdint>
#include <vector>

#include "dofla/core/tensor.h"
#include "dofla/data/windows.h"

namespace dofla {

struct SequenceLimits {
  int64_t vocabulary = 0;  // every id lies in [0, vocabulary)
  int64_t shortest = 1;    // tokens
  int64_t longest = 0;
  bool same_length = false;  // all sequences have the length of the first, as training needs them
};

// Sequences of ids from a JSON file or a pipe, [[1, 2, 3], [4, 5]]; a flat [1, 2, 3] is one
// sequence. Throws Error naming the file, the sequence and the token if anything else is found.
std::vector<TokenIds> read_ids(const fs::path& path, const SequenceLimits& limits);

// Windows that are read at once: [B, T] in I64. Throws std::invalid_argument if they have different
// lengths or are none.
Tensor to_batch(const std::vector<TokenIds>& windows);

// The numbers [0, count) in an order of their own for every (seed, pass).
std::vector<int64_t> shuffled_order(int64_t count, uint64_t seed, int64_t pass);

// The same without a list, a number at a time: where (seed, pass) puts `place`, for any count. A
// keyed permutation, of another order than shuffled_order().
int64_t shuffled_place(int64_t place, int64_t count, uint64_t seed, int64_t pass);

// Passes over the numbers [0, count), each in an order of its own, laid end to end. A function of
// the seed and the place alone: for any number of readers, and for a run that is resumed.
class ShuffledPasses {
 public:
  // Up to so many numbers the order is shuffled_order() (8 MB), above it shuffled_place().
  static constexpr int64_t kLongestList = int64_t{1} << 20;

  ShuffledPasses(int64_t count, uint64_t seed);
  int64_t at(int64_t place);

 private:
  int64_t count_;
  uint64_t seed_;
  std::vector<int64_t> order_;  // of pass `pass_`
  int64_t pass_ = -1;
};

// Batches of windows for training. Every pass over the windows is a fresh shuffle, and batch number
// `step` takes the next `batch` windows of those passes laid end to end: it is a function of (seed,
// step) alone, so that a run resumed at any step sees what the whole run saw. The batch after the
// one that was asked for is read meanwhile.
class ShuffledBatches {
 public:
  ShuffledBatches(WindowSet windows, int64_t batch, uint64_t seed);

  Tensor at(int64_t step);  // [batch, length] in I64
  int64_t windows() const { return static_cast<int64_t>(windows_.size()); }

 private:
  std::vector<int64_t> rows(int64_t step);  // the windows of a batch

  WindowSet windows_;
  WindowsAhead ahead_;
  int64_t batch_;
  ShuffledPasses passes_;
};

}  // namespace dofla
