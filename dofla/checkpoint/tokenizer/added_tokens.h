// Tokens that are found in the text before anything else looks at it: "<|endoftext|>", runs of
// spaces, chat markers.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_set>
#include <utility>
#include <vector>

#include "dofla/checkpoint/tokenizer/json_view.h"
#include "dofla/checkpoint/tokenizer/normalizer.h"
#include "dofla/checkpoint/tokenizer/vocabulary.h"

namespace dofla {

struct AddedToken {
  std::string content;
  int64_t id = 0;
  bool single_word = false;  // only where no word character touches it
  bool lstrip = false;       // takes the white space before it along
  bool rstrip = false;       // and after it
  bool normalized = false;   // looked for in the normalized text, in its own normal form
  bool special = false;      // left out by decode(skip_special)
};

std::vector<AddedToken> parse_added_tokens(const JsonView& json);

// A stretch of text, or the token that was found there.
struct Segment {
  std::string_view text;
  int64_t id = -1;  // -1: text
};

// Which tokens count in a text: all, or, where it comes from strangers who must not write markers,
// those of white space only.
enum class TokensFound { kAll, kSpaces };

// Finds tokens in a text: the leftmost first, and of those that start there the longest.
class TokenFinder {
 public:
  TokenFinder() { roots_.fill(-1); }
  void add(std::string_view pattern, const AddedToken& token);
  void split(std::string_view text, std::vector<Segment>& segments,
             TokensFound found = TokensFound::kAll) const;

 private:
  struct Node {
    int32_t token = -1;  // index into tokens_ of the pattern that ends here
    std::vector<std::pair<char, int32_t>> children;
  };
  int32_t step(int32_t node, char byte) const;
  std::pair<int32_t, size_t> longest_at(std::string_view text, size_t at,
                                        TokensFound found) const;  // token, length

  std::array<int32_t, 256> roots_;  // by first byte; -1: no pattern starts with it
  std::vector<Node> nodes_;
  std::vector<AddedToken> tokens_;
};

class AddedTokens {
 public:
  AddedTokens() = default;
  // Throws Error "where: …" if an id or a content is taken already, by the model or another token.
  AddedTokens(const std::vector<AddedToken>& tokens, const Vocabulary& model,
              const Normalizer& normalizer, std::string_view where);

  const TokenFinder& raw() const { return raw_; }                // for the text as it came
  const TokenFinder& normalized() const { return normalized_; }  // for the normalized text
  const Vocabulary& vocabulary() const { return vocabulary_; }   // all of them
  bool is_special(int64_t id) const { return special_.contains(id); }

 private:
  TokenFinder raw_;
  TokenFinder normalized_;
  Vocabulary vocabulary_;
  std::unordered_set<int64_t> special_;
};

}  // namespace dofla
