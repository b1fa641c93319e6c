// The ids of a text, packed, in blocks of 64 KiB that are read where they lie: in memory where they
// are few, else in a file. A block of a file is checked by its hash whenever it is read, so that
// neither damage nor another program that writes to the file is ever taken for text.
//
// Files are read, not mapped: what was read does not stay in the memory of the process, and a file
// that became shorter is an error with its name instead of a signal.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "dofla/data/byte_reader.h"
#include "dofla/model/token_ids.h"

namespace dofla {

class TokenStore {
 public:
  static constexpr size_t kBlock = size_t{64} << 10;  // bytes

  // Of blocks that lie in memory, or in a file from its beginning on.
  TokenStore(int64_t count, size_t bytes_per_token, std::vector<uint64_t> hashes,
             std::vector<std::vector<std::byte>> blocks);
  TokenStore(int64_t count, size_t bytes_per_token, std::vector<uint64_t> hashes,
             std::shared_ptr<const OpenFile> file);

  int64_t count() const { return count_; }  // tokens
  bool in_file() const { return file_ != nullptr; }

  // Tokens from `first` on, as many as fit; any number of threads at once. Throws Error if the file
  // is damaged there, or cannot be read.
  void read(int64_t first, std::span<int64_t> to) const;

  // Tells texts apart without reading them.
  uint64_t fingerprint() const;

 private:
  int64_t tokens_of_block() const { return static_cast<int64_t>(kBlock / width_); }
  // The bytes of a block, from memory or read into `buffer`.
  std::span<const std::byte> block(size_t i, std::vector<std::byte>& buffer) const;

  int64_t count_;
  size_t width_;                  // bytes of a token
  std::vector<uint64_t> hashes_;  // of the blocks
  std::vector<std::vector<std::byte>> blocks_;
  std::shared_ptr<const OpenFile> file_;
};

// Bytes that any id of a vocabulary fits into: 2 or 4.
size_t bytes_per_token(int64_t vocabulary);

}  // namespace dofla
