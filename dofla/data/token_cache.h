// Token files: the tokens of a text on disk, so that the next run need not make them again.
//
// A token file belongs to one tokenizer, one text and the options that tokens depend on. Its name
// follows from them, and it says so itself:
//
//   blocks of tokens     TokenStore, from the first byte on
//   8 bytes a block      their hashes
//   JSON                 what the tokens depend on, how many there are, the state of the text files
//   24 bytes             the size of the JSON, the hash of all from the hashes on, "dofla.tk"
//
// Text files are told apart by their contents, not their paths. In the name stand their sizes and
// hashes of their first and last 64 KiB, which takes no time. Whether the rest is the same follows
// from what the system knows of a file (inode, times of the last write and of the last change of
// anything, which no program can set back); where that differs, as it does of a copy on another
// machine, all of the file is hashed and compared. That is far faster than to tokenise it, and text
// that was changed is never taken for what it was.
#pragma once

#include <optional>

#include "dofla/core/json.h"
#include "dofla/data/corpus.h"
#include "dofla/data/token_store.h"

namespace dofla {

struct TokenFileContents {
  std::shared_ptr<const TokenStore> tokens;
  SkippedLines skipped;
};

class TokenCache {
 public:
  // `settings` is what tokens depend on beside the text. Throws Error if a text file cannot be
  // read.
  TokenCache(const fs::path& folder, const TextFiles& text, Json settings);

  const fs::path& file() const { return file_; }

  // What is kept, if it is whole and of this text. Where a file is there that is not, `defect` says
  // why.
  std::optional<TokenFileContents> find(std::string& defect) const;

  // What a new file ends with after the hashes of its blocks. `files` are those that were read.
  // Throws Error if one of them was written to since this object was made.
  std::string ending(std::span<const std::byte> hashes, int64_t tokens, size_t files,
                     const SkippedLines& skipped) const;

 private:
  // What the system says of a file without reading it.
  struct FileState {
    uint64_t inode = 0;
    int64_t modified = 0, changed = 0;  // nanoseconds
    bool operator==(const FileState&) const = default;
  };
  static FileState state_of(const OpenFile& file);
  void require_contents(const Json& files) const;

  fs::path file_;
  TextFiles text_;
  Json about_;  // what the name follows from
  int64_t bytes_per_token_;
  std::vector<FileState> states_;
  // Whether a change from now on must show in the state; where not, the contents are compared.
  std::vector<char> settled_;
  std::vector<std::string> early_hashes_;
};

}  // namespace dofla
