#include "dofla/data/token_store.h"

#include <algorithm>
#include <cstring>
#include <limits>

#include "dofla/core/error.h"
#include "dofla/core/hash.h"

namespace dofla {
namespace {

template <class Packed>
void unpack(const std::byte* from, std::span<int64_t> to) {
  for (int64_t& id : to) {
    Packed packed;
    std::memcpy(&packed, from, sizeof(packed));
    id = packed;
    from += sizeof(packed);
  }
}

}  // namespace

size_t bytes_per_token(int64_t vocabulary) {
  require(vocabulary > 0 && vocabulary - 1 <= std::numeric_limits<uint32_t>::max(),
          "a vocabulary of {} tokens", vocabulary);
  return vocabulary - 1 <= std::numeric_limits<uint16_t>::max() ? 2 : 4;
}

TokenStore::TokenStore(int64_t count, size_t bytes_per_token, std::vector<uint64_t> hashes,
                       std::vector<std::vector<std::byte>> blocks)
    : count_(count),
      width_(bytes_per_token),
      hashes_(std::move(hashes)),
      blocks_(std::move(blocks)) {}

TokenStore::TokenStore(int64_t count, size_t bytes_per_token, std::vector<uint64_t> hashes,
                       std::shared_ptr<const OpenFile> file)
    : count_(count), width_(bytes_per_token), hashes_(std::move(hashes)), file_(std::move(file)) {}

std::span<const std::byte> TokenStore::block(size_t i, std::vector<std::byte>& buffer) const {
  if (!file_) return blocks_[i];
  const size_t bytes = static_cast<size_t>(count_) * width_;
  buffer.resize(std::min(kBlock, bytes - i * kBlock));
  const std::span room(reinterpret_cast<char*>(buffer.data()), buffer.size());
  size_t done = 0;
  while (done < room.size()) {
    const size_t got = file_->read_at(room.subspan(done), i * kBlock + done);
    if (got == 0) break;
    done += got;
  }
  if (done < room.size() || xxh64(buffer) != hashes_[i])
    fail("{}: damaged: tokens from {} on are not those that were written; remove it and run again",
         file_->name(), static_cast<int64_t>(i) * tokens_of_block());
  return buffer;
}

void TokenStore::read(int64_t first, std::span<int64_t> to) const {
  require(first >= 0 && first + std::ssize(to) <= count_, "tokens {} to {} of {}", first,
          first + std::ssize(to), count_);
  std::vector<std::byte> buffer;
  while (!to.empty()) {
    const int64_t begin = first % tokens_of_block();
    const auto taken = static_cast<size_t>(std::min(tokens_of_block() - begin, std::ssize(to)));
    const std::byte* from = block(static_cast<size_t>(first / tokens_of_block()), buffer).data() +
                            static_cast<size_t>(begin) * width_;
    if (width_ == 2)
      unpack<uint16_t>(from, to.first(taken));
    else
      unpack<uint32_t>(from, to.first(taken));
    first += static_cast<int64_t>(taken);
    to = to.subspan(taken);
  }
}

uint64_t TokenStore::fingerprint() const {
  std::vector<uint64_t> all = hashes_;
  all.push_back(static_cast<uint64_t>(count_));
  all.push_back(width_);
  return xxh64(std::as_bytes(std::span(all)));
}

}  // namespace dofla
