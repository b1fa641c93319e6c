#include "dofla/data/windows.h"

#include <algorithm>
#include <limits>

#include "dofla/core/error.h"
#include "dofla/core/fingerprint.h"
#include "dofla/data/token_writer.h"

namespace dofla {
namespace {

Tensor read_batch(const WindowSet& windows, std::span<const int64_t> which) {
  Tensor ids({std::ssize(which), windows.length()}, DType::kI64);
  int64_t* row = ids.data<int64_t>();
  for (const int64_t i : which) {
    windows.read(static_cast<size_t>(i), {row, static_cast<size_t>(windows.length())});
    row += windows.length();
  }
  return ids;
}

}  // namespace

WindowSet::WindowSet(std::shared_ptr<const TokenStore> tokens, int64_t length)
    : tokens_(std::move(tokens)), length_(std::min(length, tokens_->count())) {
  require(length_ > 0, "windows of {} tokens", length_);
  count_ = static_cast<size_t>(tokens_->count() / length_);
}

WindowSet::WindowSet(const std::vector<TokenIds>& windows) {
  if (windows.empty()) return;
  // Ids of any vocabulary, all in memory.
  TokenWriter writer(int64_t{std::numeric_limits<uint32_t>::max()} + 1, {},
                     std::numeric_limits<size_t>::max());
  for (const TokenIds& window : windows) {
    require(window.size() == windows.front().size() && !window.empty(),
            "windows of {} and {} tokens", windows.front().size(), window.size());
    writer.append(window);
  }
  *this = WindowSet(writer.store(), std::ssize(windows.front()));
}

void WindowSet::read(size_t i, std::span<int64_t> to) const {
  require(i < count_, "window {} of {}", i, count_);
  tokens_->read(static_cast<int64_t>(first_ + i) * length_, to);
}

TokenIds WindowSet::operator[](size_t i) const {
  TokenIds window(static_cast<size_t>(length_));
  read(i, window);
  return window;
}

std::vector<TokenIds> WindowSet::all() const {
  return {begin(), end()};
}

WindowSet WindowSet::slice(size_t first, size_t count) const {
  require(first + count <= count_, "windows {} to {} of {}", first, first + count, count_);
  WindowSet part = *this;
  part.first_ += first;
  part.count_ = count;
  return part;
}

std::string WindowSet::fingerprint() const {
  Fingerprint print;
  const int64_t total = static_cast<int64_t>(count_) * length_;
  if (total > kReadWhole) {
    print.add(tokens_->fingerprint());
    for (const int64_t where : {static_cast<int64_t>(first_), total, length_})
      print.add(static_cast<uint64_t>(where));
    return print.text();
  }
  TokenIds some(size_t{32} << 10);
  for (int64_t done = 0; done < total;) {
    const std::span part(some.data(),
                         static_cast<size_t>(std::min(total - done, std::ssize(some))));
    tokens_->read(static_cast<int64_t>(first_) * length_ + done, part);
    for (const int64_t id : part) print.add(static_cast<uint64_t>(id));
    done += std::ssize(part);
  }
  return print.text();
}

Tensor WindowsAhead::take(const std::vector<int64_t>& which) {
  const auto found = std::ranges::find(announced_, which, &Batch::which);
  if (found == announced_.end()) return read_batch(windows_, which);
  std::future<Tensor> ids = std::move(found->ids);
  announced_.erase(announced_.begin(), found + 1);
  return ids.get();  // throws what the reading threw
}

void WindowsAhead::announce(const std::vector<int64_t>& which) {
  if (!windows_.in_file()) return;  // memory needs no time
  if (announced_.size() == 2) announced_.pop_front();
  announced_.push_back({which, std::async(std::launch::async, [windows = windows_, which] {
                          return read_batch(windows, which);
                        })});
}

}  // namespace dofla
