// Text to tokens on all cores: one thread reads documents, a pool encodes them, and the tokens come
// out in the order of the text, the same for any number of threads.
//
// Protocol. Documents are encoded one by one and joined by the end-of-text token (between
// documents, not before the first or after the last).
#pragma once

#include <functional>
#include <optional>
#include <string_view>

#include "dofla/core/progress.h"
#include "dofla/data/corpus.h"
#include "dofla/data/token_store.h"

namespace dofla {

using Encode = std::function<TokenIds(std::string_view text)>;  // by several threads at once

struct TokenizeOptions {
  std::optional<int64_t> end_of_text = {};  // the token between documents
  int64_t most = 0;                         // stop after so many tokens; 0: no limit
  int64_t vocabulary = 0;                   // ids must lie in [0, vocabulary)
  DocumentOptions documents = {};
  int threads = 0;  // that encode; 0: as many as there are cores, 1: the caller alone
  // Documents are read ahead until they have so many bytes of text a thread. Memory is that, the
  // last one and their tokens, whatever the size of the text.
  size_t ahead = size_t{2} << 20;
};

struct Tokenized {
  int64_t tokens = 0;
  SkippedLines skipped;         // before the last document that was taken
  size_t files = 0;             // that were opened for it
  size_t most_bytes_ahead = 0;  // of text, at any time
};

// Calls take(ids) for consecutive stretches of the tokens, on the calling thread. Throws Error as
// DocumentReader does, if there are several documents but no end-of-text token to join them, and
// on an id outside the vocabulary: the first defect in the order of the text, and none that lies
// after `most` tokens.
Tokenized tokenize(const TextFiles& files, const Encode& encode, const TokenizeOptions& options,
                   const std::function<void(std::span<const int64_t> ids)>& take,
                   const Progress& progress = {});

}  // namespace dofla
