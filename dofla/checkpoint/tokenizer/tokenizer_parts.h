// The stages of a tokenizer, put together from its files.
#pragma once

#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "dofla/checkpoint/tokenizer/added_tokens.h"
#include "dofla/checkpoint/tokenizer/bpe.h"
#include "dofla/checkpoint/tokenizer/normalizer.h"
#include "dofla/checkpoint/tokenizer/post_processor.h"
#include "dofla/checkpoint/tokenizer/pre_tokenizer.h"
#include "dofla/checkpoint/tokenizer/token_decoder.h"
#include "dofla/checkpoint/tokenizer/word_cache.h"
#include "dofla/core/file.h"

namespace dofla {

// What encoding needs besides the tokenizer itself; one for each thread at it.
struct EncodeWorkspace {
  WordCache cache;
  Bpe::Scratch bpe;
  std::vector<Segment> segments;
  std::vector<Segment> normalized_segments;
  std::vector<std::string_view> words;
  std::string normalized;
  std::string split;
  std::string characters;
};

// Workspaces that no thread uses now, so that the next call finds a cache full of words.
class WorkspacePool {
 public:
  std::unique_ptr<EncodeWorkspace> take();
  void give_back(std::unique_ptr<EncodeWorkspace> workspace);

 private:
  std::mutex mutex_;
  std::vector<std::unique_ptr<EncodeWorkspace>> idle_;
};

struct TokenizerParts {
  Normalizer normalizer;
  PreTokenizer pre_tokenizer;
  AddedTokens added;
  Bpe bpe;
  PostProcessor post_processor;
  TokenDecoder decoder;
  mutable WorkspacePool workspaces;
};

std::shared_ptr<const TokenizerParts> parse_tokenizer_json(std::string_view json,
                                                           std::string_view where);

// vocab.json + merges.txt in `folder`: GPT-2's own form.
std::shared_ptr<const TokenizerParts> load_gpt2_files(const fs::path& folder);

}  // namespace dofla
