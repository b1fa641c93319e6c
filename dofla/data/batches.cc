#include "dofla/data/batches.h"

#include <algorithm>
#include <numeric>

#include "dofla/core/error.h"
#include "dofla/core/fingerprint.h"
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

WindowReader::WindowReader(TextFiles files, Encode encode, const WindowOptions& options)
    : documents_(std::move(files), options.documents),
      encode_(std::move(encode)),
      options_(options) {
  require(options_.length >= 2, "WindowReader: windows of {} tokens predict nothing",
          options_.length);
}

bool WindowReader::append_document() {
  std::optional<std::string> document = documents_.next();
  if (!document) return false;
  pending_.erase(pending_.begin(), pending_.begin() + static_cast<std::ptrdiff_t>(begin_));
  begin_ = 0;
  if (started_ && !options_.end_of_text)
    fail(
        "the model has no end-of-text token (eos_token_id) to join several documents by; give it "
        "one document, or token ids");
  if (started_) pending_.push_back(*options_.end_of_text);
  started_ = true;
  TokenIds ids = encode_(*document);
  document.reset();  // the two together are what takes most memory
  for (const int64_t id : ids)
    if (options_.vocabulary > 0 && id >= options_.vocabulary)
      fail("the tokenizer gives id {}, but the model's vocabulary has {}", id, options_.vocabulary);
  if (pending_.empty())
    pending_ = std::move(ids);
  else
    pending_.insert(pending_.end(), ids.begin(), ids.end());
  return true;
}

bool WindowReader::next(TokenIds& window) {
  if (options_.most > 0 && windows_ == options_.most) return false;
  const auto length = static_cast<size_t>(options_.length);
  while (pending_.size() - begin_ < length && append_document()) {
  }
  const size_t size = std::min(length, pending_.size() - begin_);
  if (size < 2 && windows_ == 0)
    fail("the text has {} token{}: at least 2 are needed to predict one", size,
         size == 1 ? "" : "s");
  if (size < 2) return false;
  const auto first = pending_.begin() + static_cast<std::ptrdiff_t>(begin_);
  window.assign(first, first + static_cast<std::ptrdiff_t>(size));
  begin_ += size;
  ++windows_;
  return true;
}

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

std::string fingerprint_of(const std::vector<TokenIds>& sequences) {
  Fingerprint print;
  for (const TokenIds& sequence : sequences)
    for (const int64_t id : sequence) print.add(static_cast<uint64_t>(id));
  return print.text();
}

Tensor to_tensor(const TokenIds& ids) {
  Tensor tensor({1, static_cast<int64_t>(ids.size())}, DType::kI64);
  std::copy(ids.begin(), ids.end(), tensor.data<int64_t>());
  return tensor;
}

std::vector<int64_t> shuffled_order(int64_t count, uint64_t seed, int64_t pass) {
  std::vector<int64_t> order(static_cast<size_t>(count));
  std::iota(order.begin(), order.end(), 0);
  Random random(seed, static_cast<uint64_t>(pass));
  for (size_t left = order.size(); left > 1; --left)
    std::swap(order[left - 1], order[random.below(left)]);
  return order;
}

ShuffledBatches::ShuffledBatches(std::vector<TokenIds> windows, int64_t batch, uint64_t seed)
    : windows_(std::move(windows)), batch_(batch), seed_(seed) {
  require(!windows_.empty(), "ShuffledBatches: no windows");
  require(batch_ > 0, "ShuffledBatches: a batch of {} windows", batch_);
  for (const TokenIds& window : windows_)
    require(window.size() == windows_.front().size() && !window.empty(),
            "ShuffledBatches: windows of {} and {} tokens", windows_.front().size(), window.size());
}

Tensor ShuffledBatches::at(int64_t step) {
  require(step >= 0, "ShuffledBatches: step {}", step);
  Tensor batch({batch_, static_cast<int64_t>(windows_.front().size())}, DType::kI64);
  int64_t* to = batch.data<int64_t>();
  for (int64_t i = 0; i < batch_; ++i) {
    const int64_t place = step * batch_ + i;
    if (place / windows() != pass_) {
      pass_ = place / windows();
      order_ = shuffled_order(windows(), seed_, pass_);
    }
    const int64_t index = order_[static_cast<size_t>(place % windows())];
    const TokenIds& window = windows_[static_cast<size_t>(index)];
    to = std::copy(window.begin(), window.end(), to);
  }
  return batch;
}

}  // namespace dofla
