// The regular expressions of the common byte-level tokenizers, split by hand: some five times as
// fast as a regular expression engine, and the same to the byte.
#pragma once

#include <cstddef>
#include <string_view>

namespace dofla {

// The end of the word that starts at `at` < text.size() of well-formed UTF-8. Words follow each
// other without gaps.
using WordEnd = size_t (*)(std::string_view text, size_t at);

inline constexpr std::string_view kGpt2Pattern =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";
inline constexpr std::string_view kLlama3Pattern =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
inline constexpr std::string_view kQwen2Pattern =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";

// The splitter that does the same as `regex`; nullptr if there is none.
WordEnd word_end_of(std::string_view regex);

// SentencePiece writes spaces as this character.
inline constexpr std::string_view kSpaceMark = "\xE2\x96\x81";  // U+2581

size_t word_end_before_mark(std::string_view text, size_t at);      // every mark starts a word
size_t word_end_before_mark_run(std::string_view text, size_t at);  // every run of marks does

}  // namespace dofla
