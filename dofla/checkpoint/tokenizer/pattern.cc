#include "dofla/checkpoint/tokenizer/pattern.h"

#include <cctype>

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include "dofla/checkpoint/tokenizer/unicode.h"

namespace dofla {
namespace {

template <auto free_function>
struct Freed {
  template <class T>
  void operator()(T* object) const {
    free_function(object);
  }
};
using MatchData = std::unique_ptr<pcre2_match_data, Freed<pcre2_match_data_free>>;
using MatchContext = std::unique_ptr<pcre2_match_context, Freed<pcre2_match_context_free>>;
using JitStack = std::unique_ptr<pcre2_jit_stack, Freed<pcre2_jit_stack_free>>;

std::string pcre2_message(int error) {
  PCRE2_UCHAR text[256] = {};
  pcre2_get_error_message(error, text, sizeof(text));
  return reinterpret_cast<const char*>(text);
}

// Throws Error at a construct that Oniguruma and PCRE2 read differently.
void check_dialect(std::string_view source, std::string_view where) {
  const auto refuse = [&](std::string_view construct) {
    fail("{}: regular expression construct {} is not supported in {}", where, construct, source);
  };
  bool in_set = false;
  for (size_t i = 0; i < source.size(); ++i) {
    const std::string_view rest = source.substr(i);
    const char c = source[i];
    if (c == '\\') {
      const char escaped = rest.size() > 1 ? rest[1] : '\0';
      const bool letter_or_digit = std::isalnum(static_cast<unsigned char>(escaped)) != 0;
      constexpr std::string_view kSame = "rntfaedDsSpPx";
      if (letter_or_digit && kSame.find(escaped) == kSame.npos) refuse(rest.substr(0, 2));
      ++i;
      if (rest.starts_with("\\p{") || rest.starts_with("\\P{")) {  // categories, but no scripts
        const std::string_view name = rest.substr(3, rest.find('}') - 3);
        if (name.size() > (name.starts_with('^') ? 3u : 2u))
          refuse(rest.substr(0, name.size() + 4));
        i += name.size() + 2;
      }
    } else if (in_set) {
      if (c == '[' || rest.starts_with("&&")) refuse(rest.substr(0, 2));
      if (c == ']') in_set = false;
    } else if (c == '[') {
      in_set = true;
      if (rest.starts_with("[^")) ++i;
      if (source.substr(i + 1).starts_with("]")) ++i;  // a first ']' is an ordinary character
    } else if (rest.starts_with("(*") || rest.starts_with("}+") || rest.starts_with("}?")) {
      refuse(rest.substr(0, 2));
    } else if (rest.starts_with("(?")) {
      const char kind = rest.size() > 2 ? rest[2] : '\0';
      constexpr std::string_view kSame = ":=!<>i";
      if (kSame.find(kind) == kSame.npos) refuse(rest.substr(0, 3));
      if (kind == 'i' && !rest.starts_with("(?i:")) refuse(rest.substr(0, 4));
    }
  }
}

}  // namespace

Pattern Pattern::literal(std::string_view text, std::string_view where) {
  if (text.empty()) fail("{}: the string to search for is empty", where);
  Pattern pattern;
  pattern.source_ = text;
  pattern.where_ = where;
  return pattern;
}

Pattern Pattern::regex(std::string_view source, std::string_view where) {
  check_dialect(source, where);
  int error = 0;
  size_t at = 0;
  // In Oniguruma's default syntax ^ and $ match at every line.
  constexpr uint32_t kOptions =
      PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE | PCRE2_NEVER_BACKSLASH_C | PCRE2_NO_AUTO_CAPTURE;
  pcre2_code* code = pcre2_compile(reinterpret_cast<PCRE2_SPTR>(source.data()), source.size(),
                                   kOptions, &error, &at, nullptr);
  if (code == nullptr)
    fail("{}: bad regular expression {}: {} at byte {}", where, source, pcre2_message(error), at);
  Pattern pattern;
  pattern.source_ = source;
  pattern.where_ = where;
  pattern.code_ = std::shared_ptr<pcre2_code>(code, pcre2_code_free);
  pcre2_jit_compile(code, PCRE2_JIT_COMPLETE);  // where it cannot, pcre2_match interprets
  return pattern;
}

Pattern Pattern::parse(const JsonView& json) {
  if (json.has("String")) return literal(json.text("String"), json.where());
  if (json.has("Regex")) return regex(json.text("Regex"), json.where());
  json.refuse("expected a String or a Regex");
}

std::vector<Pattern::Match> Pattern::literal_matches(std::string_view text) const {
  std::vector<Match> found;
  for (size_t at = text.find(source_); at != text.npos; at = text.find(source_, at)) {
    found.push_back({at, at + source_.size()});
    at += source_.size();
  }
  return found;
}

std::vector<Pattern::Match> Pattern::matches(std::string_view text) const {
  if (!is_regex()) return literal_matches(text);
  const auto* code = static_cast<const pcre2_code*>(code_.get());
  const MatchData data(pcre2_match_data_create(1, nullptr));
  const MatchContext context(pcre2_match_context_create(nullptr));
  const JitStack stack(pcre2_jit_stack_create(32 << 10, 1 << 20, nullptr));
  if (!data || !context || !stack) throw std::bad_alloc();
  pcre2_jit_stack_assign(context.get(), nullptr, stack.get());
  pcre2_set_match_limit(context.get(), 10'000'000);
  pcre2_set_heap_limit(context.get(), 256 << 10);  // KiB

  std::vector<Match> found;
  size_t from = 0;
  while (from <= text.size()) {
    const auto match = [&](uint32_t options) {
      return pcre2_match(code, reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(), from,
                         PCRE2_NO_UTF_CHECK | options, data.get(), context.get());
    };
    int count = match(0);
    if (count == PCRE2_ERROR_JIT_STACKLIMIT) count = match(PCRE2_NO_JIT);
    if (count == PCRE2_ERROR_NOMATCH) break;
    if (count < 0) fail("{}: regular expression {}: {}", where_, source_, pcre2_message(count));
    const size_t* bounds = pcre2_get_ovector_pointer(data.get());
    const Match next = {bounds[0], bounds[1]};
    // An empty match where the last one ended says nothing new: look on from the next character.
    if (next.begin == next.end && !found.empty() && found.back().end == next.end) {
      if (next.end == text.size()) break;
      from = next.end + character_at(text, next.end).length;
      continue;
    }
    found.push_back(next);
    from = next.end;
  }
  return found;
}

}  // namespace dofla
