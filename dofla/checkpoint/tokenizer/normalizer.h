// Rewrites text before it is cut into words.
#pragma once

#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "dofla/checkpoint/tokenizer/json_view.h"
#include "dofla/checkpoint/tokenizer/pattern.h"

namespace dofla {

class Normalizer {
 public:
  // `normalizer` of a tokenizer.json: null, NFC, NFD, NFKC, NFKD, Prepend, Replace or a Sequence.
  static Normalizer parse(const JsonView& json);

  // The normal form of well-formed UTF-8: `text` itself where nothing changes, else `storage`.
  // Throws Error if it is longer than longest_rewritten(text.size()).
  std::string_view apply(std::string_view text, std::string& storage) const;

 private:
  enum class UnicodeForm { kNfc, kNfd, kNfkc, kNfkd };
  struct Prepend {
    std::string text;
  };
  struct Replace {
    Pattern pattern;
    std::string content;
  };
  using Step = std::variant<UnicodeForm, Prepend, Replace>;

  void parse_step(const JsonView& json);
  static bool changes(const Step& step, std::string_view text);
  static std::string rewritten(const Step& step, std::string_view text, size_t longest);

  std::vector<Step> steps_;
};

// Appends `text` with each `from` (not empty) turned into `to`.
void append_replaced(std::string_view text, std::string_view from, std::string_view to,
                     std::string& out);

// The same for the matches of a pattern. Throws Error if the result has more than `longest` bytes.
std::string replaced(std::string_view text, const Pattern& pattern, std::string_view to,
                     size_t longest);

// The most bytes that rewriting may make of so many: a hostile file could turn a letter into
// gigabytes. Unicode's longest decomposition turns 3 bytes into 33.
constexpr size_t longest_rewritten(size_t bytes) {
  return 16 * bytes + 1024;
}

// True only if `text` is in normalization form C; false where a full pass is needed to tell.
bool is_quickly_nfc(std::string_view text);

}  // namespace dofla
