// Equally long windows of a text, read by their numbers from where the tokens lie.
#pragma once

#include <cstdint>
#include <deque>
#include <future>
#include <initializer_list>
#include <iterator>
#include <string>
#include <vector>

#include "dofla/core/tensor.h"
#include "dofla/data/token_store.h"

namespace dofla {

// A copy copies the handle. Windows are read when they are asked for, and any number of threads may
// ask. Iteration yields them one by one, as TokenIds of their own.
class WindowSet {
 public:
  WindowSet() = default;
  // The windows that do not overlap; a text that is shorter than `length` is one window.
  WindowSet(std::shared_ptr<const TokenStore> tokens, int64_t length);
  // Of ids in memory. Throws std::invalid_argument if they have different lengths or are none.
  WindowSet(const std::vector<TokenIds>& windows);  // NOLINT(google-explicit-constructor)
  WindowSet(std::initializer_list<TokenIds> windows) : WindowSet(std::vector<TokenIds>(windows)) {}

  size_t size() const { return count_; }
  bool empty() const { return count_ == 0; }
  int64_t length() const { return length_; }  // tokens of every window
  TokenIds operator[](size_t i) const;
  TokenIds front() const { return (*this)[0]; }
  void read(size_t i, std::span<int64_t> to) const;
  std::vector<TokenIds> all() const;

  WindowSet slice(size_t first, size_t count) const;

  // Tells texts apart. Up to kReadWhole tokens it is a hash of all ids, above it one of hashes that
  // the store has: reading a text of any size takes as long as its disk does.
  std::string fingerprint() const;
  static constexpr int64_t kReadWhole = int64_t{1} << 26;

  bool in_file() const { return tokens_ && tokens_->in_file(); }

  class Iterator {
   public:
    using iterator_category = std::input_iterator_tag;
    using value_type = TokenIds;
    using difference_type = std::ptrdiff_t;
    using pointer = const TokenIds*;
    using reference = TokenIds;

    Iterator(const WindowSet& windows, size_t at) : windows_(&windows), at_(at) {}
    TokenIds operator*() const { return (*windows_)[at_]; }
    Iterator& operator++() {
      ++at_;
      return *this;
    }
    bool operator==(const Iterator& other) const { return at_ == other.at_; }

   private:
    const WindowSet* windows_;
    size_t at_;
  };
  Iterator begin() const { return {*this, 0}; }
  Iterator end() const { return {*this, count_}; }

 private:
  std::shared_ptr<const TokenStore> tokens_;
  int64_t length_ = 0;
  size_t first_ = 0, count_ = 0;  // windows
};

inline std::string fingerprint_of(const WindowSet& windows) {
  return windows.fingerprint();
}

// Batches that another thread reads before they are needed, so that no step waits for a disk.
class WindowsAhead {
 public:
  explicit WindowsAhead(WindowSet windows) : windows_(std::move(windows)) {}

  // The windows of these numbers, [n, length] in I64: at once, where they were announced.
  Tensor take(const std::vector<int64_t>& which);
  // Of several that were announced and not taken, the last two count.
  void announce(const std::vector<int64_t>& which);

 private:
  struct Batch {
    std::vector<int64_t> which;
    std::future<Tensor> ids;
  };
  WindowSet windows_;
  std::deque<Batch> announced_;
};

}  // namespace dofla
