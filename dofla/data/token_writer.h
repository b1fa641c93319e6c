// Tokens on their way into a TokenStore: into the file that keeps them for the next run, or where
// there is none into memory and, past a limit, a temporary file without a name.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "dofla/core/file.h"
#include "dofla/data/token_store.h"

namespace dofla {

// A disk that is full never ends the work: what the file holds already comes back into memory, at 2
// or 4 bytes a token.
class TokenWriter {
 public:
  // Bytes of tokens that stay in memory where no file keeps them.
  static constexpr size_t kMostInMemory = size_t{64} << 20;

  // `keep_as` is the file that appears, whole, with keep(); empty: none. Ids lie in
  // [0, vocabulary).
  explicit TokenWriter(int64_t vocabulary, const fs::path& keep_as = {},
                       size_t most_in_memory = kMostInMemory);

  void append(std::span<const int64_t> ids);
  int64_t count() const { return count_; }
  const std::string& not_kept() const { return not_kept_; }  // why no file will appear; or empty
  void give_up_keeping(const std::string& why);

  // Ends the file with the hashes of the blocks and what `ending` makes of them, and gives it its
  // name; false if that cannot be done.
  bool keep(const std::function<std::string(std::span<const std::byte> hashes)>& ending);
  // The tokens that are not kept.
  std::shared_ptr<const TokenStore> store();

 private:
  void end_block();                          // the pending one
  void place(std::vector<std::byte> block);  // where blocks go at present
  void move_to_temporary_file();
  void leave_temporary_file();

  size_t width_;
  size_t most_in_memory_;
  int64_t count_ = 0;
  std::vector<std::byte> pending_;
  std::vector<uint64_t> hashes_;
  // All blocks lie in one of these three.
  std::unique_ptr<WholeFile> kept_;
  std::shared_ptr<const OpenFile> temporary_;
  std::vector<std::vector<std::byte>> memory_;
  uint64_t in_file_ = 0;       // bytes of blocks in one of the first two
  bool no_temporary_ = false;  // it cannot be written
  std::string not_kept_;
};

}  // namespace dofla
