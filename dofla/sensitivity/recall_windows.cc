#include "dofla/sensitivity/recall_windows.h"

#include <algorithm>

#include "dofla/core/error.h"
#include "dofla/core/random.h"

namespace dofla {
namespace {

// Passages of one length: long enough that most of their tokens can be known from the first few.
struct Passages {
  int64_t count = 0, length = 0;
};

Passages passages_of(int64_t window) {
  constexpr int64_t kLongest = 32;
  const int64_t length = std::min(kLongest, window / 8);
  return {std::max<int64_t>(1, window * 3 / 16 / length), length};
}

}  // namespace

int64_t repeated_at_end(int64_t length) {
  require(length >= 8, "a window of {} tokens is too short to ask for recall", length);
  const Passages passages = passages_of(length);
  return passages.count * passages.length;
}

TokenIds recall_window(TokenIds ids, uint64_t seed) {
  const int64_t before = std::ssize(ids) - repeated_at_end(std::ssize(ids));
  const auto [count, length] = passages_of(std::ssize(ids));
  Random random(seed);
  // One passage of every part, so that all distances occur.
  std::vector<int64_t> begins;
  for (int64_t i = 0; i < count; ++i) {
    const int64_t part = before * i / count, end = before * (i + 1) / count;
    const int64_t places = std::max<int64_t>(1, end - part - length + 1);
    begins.push_back(part + static_cast<int64_t>(random.below(static_cast<uint64_t>(places))));
  }
  for (size_t i = begins.size(); i > 1; --i) std::swap(begins[i - 1], begins[random.below(i)]);
  auto to = ids.begin() + before;
  for (const int64_t begin : begins) to = std::copy_n(ids.begin() + begin, length, to);
  return ids;
}

}  // namespace dofla
