// What a tokenizer file may search for: a literal string, or a regular expression. Files are
// written for Oniguruma and we have PCRE2; the two agree on the constructs that tokenizers use,
// and a construct on which they do not is refused by name. Known differences that remain: PCRE2
// counts U+180E as \s, and characters newer than its Unicode version as unassigned.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "dofla/checkpoint/tokenizer/json_view.h"

namespace dofla {

class Pattern {
 public:
  struct Match {
    size_t begin;
    size_t end;
    bool operator==(const Match&) const = default;
  };

  static Pattern literal(std::string_view text, std::string_view where);
  static Pattern regex(std::string_view source, std::string_view where);
  static Pattern parse(const JsonView& json);  // {"String": …} or {"Regex": …}

  // All matches in well-formed UTF-8, from left to right, none overlapping another. Throws Error if
  // that is more work than a multiple of the text's bytes: with a hostile expression it could grow
  // with their square, or exponentially.
  std::vector<Match> matches(std::string_view text) const;

  const std::string& source() const { return source_; }
  const std::string& where() const { return where_; }  // in the file, for messages
  bool is_regex() const { return code_ != nullptr; }

 private:
  std::vector<Match> literal_matches(std::string_view text) const;

  std::string source_;
  std::string where_;
  std::shared_ptr<const void> code_;  // pcre2_code; none for a literal
};

}  // namespace dofla
