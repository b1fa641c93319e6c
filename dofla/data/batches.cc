#include "dofla/data/batches.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "dofla/core/error.h"
#include "dofla/core/json.h"
#include "dofla/core/random.h"

namespace dofla {
namespace {

TokenIds read_sequence(const Json& sequence, std::string_view where, const SequenceLimits& limits) {
  if (!sequence.is_array()) fail("{}: expected an array of token ids", where);
  const auto size = static_cast<int64_t>(sequence.size());
  if (size < limits.shortest)
    fail("{}: {} tokens, fewer than the {} needed", where, size, limits.shortest);
  if (size > limits.longest)
    fail("{}: {} tokens, more than the {} that fit into the context; cut it into shorter sequences",
         where, size, limits.longest);
  TokenIds ids;
  ids.reserve(sequence.size());
  for (const Json& token : sequence) {
    // Whole numbers from 0 up are what the JSON library holds as unsigned.
    const bool inside = token.is_number_unsigned() &&
                        token.get<uint64_t>() < static_cast<uint64_t>(limits.vocabulary);
    if (!inside)
      fail("{}: token {}: expected an id from 0 to {}, found {:.40}", where, ids.size(),
           limits.vocabulary - 1, token.dump(-1, ' ', true));
    ids.push_back(token.get<int64_t>());
  }
  return ids;
}

}  // namespace

std::vector<TokenIds> read_ids(const fs::path& path, const SequenceLimits& limits) {
  const Json file = load_json(path, Input::kFileOrPipe);
  const std::string where = path.string();
  if (!file.is_array() || file.empty())
    fail("{}: expected an array of arrays of token ids, such as [[1, 2, 3]]", where);
  if (file.front().is_number()) return {read_sequence(file, where, limits)};
  std::vector<TokenIds> sequences;
  for (const Json& sequence : file) {
    const std::string at = fmt::format("{}: sequence {}", where, sequences.size());
    sequences.push_back(read_sequence(sequence, at, limits));
    const size_t size = sequences.back().size(), first = sequences.front().size();
    if (limits.same_length && size != first)
      fail(
          "{}: {} tokens, the first has {}; training takes sequences of one length: cut them alike",
          at, size, first);
  }
  return sequences;
}

Tensor to_batch(const std::vector<TokenIds>& windows) {
  require(!windows.empty(), "to_batch: no windows");
  const size_t length = windows.front().size();
  Tensor batch({std::ssize(windows), static_cast<int64_t>(length)}, DType::kI64);
  auto* row = batch.data<int64_t>();
  for (const TokenIds& window : windows) {
    require(window.size() == length, "to_batch: windows of {} and {} tokens", length,
            window.size());
    row = std::copy(window.begin(), window.end(), row);
  }
  return batch;
}

std::vector<int64_t> shuffled_order(int64_t count, uint64_t seed, int64_t pass) {
  std::vector<int64_t> order(static_cast<size_t>(count));
  std::iota(order.begin(), order.end(), 0);
  Random random(seed, static_cast<uint64_t>(pass));
  for (size_t left = order.size(); left > 1; --left)
    std::swap(order[left - 1], order[random.below(left)]);
  return order;
}

// A Feistel network over the smallest even number of bits that count fits into: each round is
// undone by itself, so no two places meet. A number past the end is sent through again, and as it
// came from a place inside, it gets back there.
int64_t shuffled_place(int64_t place, int64_t count, uint64_t seed, int64_t pass) {
  require(place >= 0 && place < count, "shuffled_place: {} of {}", place, count);
  constexpr int kRounds = 6;
  int half = 1;
  while ((uint64_t{1} << (2 * half)) < static_cast<uint64_t>(count)) ++half;
  const uint64_t mask = (uint64_t{1} << half) - 1;
  Random random(seed, static_cast<uint64_t>(pass));
  uint64_t keys[kRounds];
  for (uint64_t& key : keys) key = random.bits();
  auto number = static_cast<uint64_t>(place);
  do {
    uint64_t left = number >> half, right = number & mask;
    for (const uint64_t key : keys)
      left = std::exchange(right, left ^ (Random(key, right).bits() & mask));
    number = (left << half) | right;
  } while (number >= static_cast<uint64_t>(count));
  return static_cast<int64_t>(number);
}

ShuffledPasses::ShuffledPasses(int64_t count, uint64_t seed) : count_(count), seed_(seed) {
  require(count > 0, "ShuffledPasses: nothing to shuffle");
}

int64_t ShuffledPasses::at(int64_t place) {
  require(place >= 0, "ShuffledPasses: place {}", place);
  const int64_t pass = place / count_;
  if (count_ > kLongestList) return shuffled_place(place % count_, count_, seed_, pass);
  if (pass != pass_) order_ = shuffled_order(count_, seed_, pass);
  pass_ = pass;
  return order_[static_cast<size_t>(place % count_)];
}

ShuffledBatches::ShuffledBatches(WindowSet windows, int64_t batch, uint64_t seed)
    : windows_(std::move(windows)),
      ahead_(windows_),
      batch_(batch),
      passes_(static_cast<int64_t>(windows_.size()), seed) {
  require(batch_ > 0, "ShuffledBatches: a batch of {} windows", batch_);
}

std::vector<int64_t> ShuffledBatches::rows(int64_t step) {
  std::vector<int64_t> which;
  for (int64_t i = 0; i < batch_; ++i) which.push_back(passes_.at(step * batch_ + i));
  return which;
}

Tensor ShuffledBatches::at(int64_t step) {
  require(step >= 0, "ShuffledBatches: step {}", step);
  Tensor batch = ahead_.take(rows(step));
  ahead_.announce(rows(step + 1));
  return batch;
}

}  // namespace dofla
