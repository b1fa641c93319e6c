#include "dofla/data/token_writer.h"

#include <algorithm>
#include <utility>

#include "dofla/core/error.h"
#include "dofla/core/hash.h"

namespace dofla {
namespace {

// Calls take(block) for what lies in the first `bytes` bytes of a file.
template <class Read, class Take>
void for_each_block(uint64_t bytes, const Read& read, const Take& take) {
  for (uint64_t from = 0; from < bytes; from += TokenStore::kBlock) {
    std::vector<std::byte> block(std::min<uint64_t>(TokenStore::kBlock, bytes - from));
    read(block, from);
    take(std::move(block));
  }
}

}  // namespace

TokenWriter::TokenWriter(int64_t vocabulary, const fs::path& keep_as, size_t most_in_memory)
    : width_(bytes_per_token(vocabulary)), most_in_memory_(most_in_memory) {
  pending_.reserve(TokenStore::kBlock);
  if (keep_as.empty()) return;
  try {
    std::error_code error;  // WholeFile says what is wrong with the place
    fs::create_directories(keep_as.parent_path(), error);
    remove_abandoned(keep_as.parent_path());
    kept_ = std::make_unique<WholeFile>(keep_as);
  } catch (const Error& error) {
    not_kept_ = error.what();
  }
}

void TokenWriter::append(std::span<const int64_t> ids) {
  for (const int64_t id : ids) {
    const auto packed = static_cast<uint32_t>(id);  // its low bytes come first
    const auto* bytes = reinterpret_cast<const std::byte*>(&packed);
    pending_.insert(pending_.end(), bytes, bytes + width_);
    if (pending_.size() == TokenStore::kBlock) end_block();
  }
  count_ += std::ssize(ids);
}

void TokenWriter::end_block() {
  if (pending_.empty()) return;
  hashes_.push_back(xxh64(pending_));
  place(std::exchange(pending_, {}));
  pending_.reserve(TokenStore::kBlock);
}

void TokenWriter::place(std::vector<std::byte> block) {
  if (kept_) {
    try {
      kept_->write(block.data(), block.size());
      in_file_ += block.size();
      return;
    } catch (const Error& error) {
      give_up_keeping(error.what());
    }
  }
  if (!temporary_ && !no_temporary_ && memory_.size() * TokenStore::kBlock >= most_in_memory_)
    move_to_temporary_file();
  if (temporary_) {
    try {
      temporary_->write({reinterpret_cast<const char*>(block.data()), block.size()});
      in_file_ += block.size();
      return;
    } catch (const Error&) {
      leave_temporary_file();
    }
  }
  memory_.push_back(std::move(block));
}

void TokenWriter::give_up_keeping(const std::string& why) {
  not_kept_ = why;
  const std::unique_ptr<WholeFile> file = std::move(kept_);
  if (!file) return;
  for_each_block(
      std::exchange(in_file_, 0),
      [&](std::vector<std::byte>& block, uint64_t from) {
        file->read_back(block.data(), block.size(), from);
      },
      [&](std::vector<std::byte> block) { place(std::move(block)); });
}

void TokenWriter::move_to_temporary_file() {
  try {
    temporary_ = unnamed_file("tokens");
  } catch (const Error&) {
    no_temporary_ = true;
    return;
  }
  for (std::vector<std::byte>& block : std::exchange(memory_, {})) place(std::move(block));
}

void TokenWriter::leave_temporary_file() {
  no_temporary_ = true;
  const std::shared_ptr<const OpenFile> file = std::exchange(temporary_, nullptr);
  for_each_block(
      std::exchange(in_file_, 0),
      [&](std::vector<std::byte>& block, uint64_t from) {
        const std::span room(reinterpret_cast<char*>(block.data()), block.size());
        if (file->read_at(room, from) != room.size()) fail("{}: cannot be read back", file->name());
      },
      [&](std::vector<std::byte> block) { memory_.push_back(std::move(block)); });
}

bool TokenWriter::keep(
    const std::function<std::string(std::span<const std::byte> hashes)>& ending) {
  end_block();
  if (!kept_) return false;
  try {
    const std::span<const std::byte> hashes = std::as_bytes(std::span(hashes_));
    const std::string rest = ending(hashes);
    kept_->write(hashes.data(), hashes.size());
    kept_->write(rest.data(), rest.size());
    kept_->commit();
  } catch (const Error& error) {
    give_up_keeping(error.what());
    return false;
  }
  kept_.reset();
  return true;
}

std::shared_ptr<const TokenStore> TokenWriter::store() {
  require(!kept_, "TokenWriter: these tokens are to be kept");
  end_block();
  if (temporary_)
    return std::make_shared<TokenStore>(count_, width_, std::move(hashes_), std::move(temporary_));
  return std::make_shared<TokenStore>(count_, width_, std::move(hashes_), std::move(memory_));
}

}  // namespace dofla
