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

// How much work a search may be. Every place of a text may be tried as the start of a match with
// kSteps of backtracking and a look at the kWindow bytes after it; the few places that need more,
// such as a long run of capitals, share what the whole text has besides.
constexpr uint32_t kSteps = 1000;
constexpr size_t kWindow = size_t{64} << 10;
constexpr uint64_t kShared = 10'000'000;
constexpr uint64_t kSharedPerByte = 100;

std::string pcre2_message(int error) {
  PCRE2_UCHAR text[256] = {};
  pcre2_get_error_message(error, text, sizeof(text));
  return reinterpret_cast<const char*>(text);
}

// Searches one text with one expression, within the work that the text may be.
class Search {
 public:
  Search(const pcre2_code* code, std::string_view text)
      : code_(code),
        text_(text),
        shared_(kShared + kSharedPerByte * text.size()),
        data_(pcre2_match_data_create(1, nullptr)),
        context_(pcre2_match_context_create(nullptr)),
        stack_(pcre2_jit_stack_create(32 << 10, 1 << 20, nullptr)) {
    if (!data_ || !context_ || !stack_) throw std::bad_alloc();
    pcre2_jit_stack_assign(context_.get(), nullptr, stack_.get());
    pcre2_set_heap_limit(context_.get(), 256 << 10);  // KiB
  }

  // The first match that starts at `from` or later. An error code of PCRE2 if there is none.
  int next(size_t from) {
    // PCRE2 does not say at which start a limit was reached: the starts are then tried one by one
    // until that one is passed.
    bool one_by_one = false;
    while (true) {
      int count = match(from, one_by_one ? PCRE2_ANCHORED : 0, kSteps, kWindow);
      const bool limited = is_limit(count);
      if (limited && !one_by_one) {
        one_by_one = true;
        continue;
      }
      if (limited) count = match_with_shared(from);
      if (count != PCRE2_ERROR_NOMATCH) return count;
      const size_t done = one_by_one ? from : window_end(from, kWindow);
      if (done == text_.size()) return count;
      from = one_by_one ? from + character_at(text_, from).length : done;
      one_by_one = one_by_one && !limited;
    }
  }

  Pattern::Match found() const {
    const size_t* bounds = pcre2_get_ovector_pointer(data_.get());
    return {bounds[0], bounds[1]};
  }

 private:
  static bool is_limit(int count) {
    return count == PCRE2_ERROR_MATCHLIMIT || count == PCRE2_ERROR_PARTIAL;
  }

  // Between two characters.
  size_t window_end(size_t from, size_t window) const {
    if (window >= text_.size() - from) return text_.size();
    size_t end = from + window;
    while ((text_[end] & 0xC0) == 0x80) --end;
    return end;
  }

  // PCRE2_ERROR_PARTIAL if what follows the window could change the outcome.
  int match(size_t from, uint32_t options, uint32_t steps, size_t window) {
    pcre2_set_match_limit(context_.get(), steps);
    const size_t end = window_end(from, window);
    if (end < text_.size()) options |= PCRE2_PARTIAL_HARD;
    const auto run = [&](uint32_t more) {
      return pcre2_match(code_, reinterpret_cast<PCRE2_SPTR>(text_.data()), end, from,
                         PCRE2_NO_UTF_CHECK | options | more, data_.get(), context_.get());
    };
    const int count = run(0);
    return count == PCRE2_ERROR_JIT_STACKLIMIT ? run(PCRE2_NO_JIT) : count;
  }

  int match_with_shared(size_t from) {
    uint32_t steps = kSteps;
    for (size_t window = kWindow;;) {
      steps *= 10;
      window *= 10;
      const uint64_t work = steps + window_end(from, window) - from;
      if (work > shared_ || steps > UINT32_MAX / 10) return PCRE2_ERROR_MATCHLIMIT;
      shared_ -= work;
      const int count = match(from, PCRE2_ANCHORED, steps, window);
      if (!is_limit(count)) return count;
    }
  }

  const pcre2_code* code_;
  std::string_view text_;
  uint64_t shared_;
  MatchData data_;
  MatchContext context_;
  JitStack stack_;
};

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
  pcre2_jit_compile(code, PCRE2_JIT_COMPLETE |
                              PCRE2_JIT_PARTIAL_HARD);  // where it cannot, pcre2_match interprets
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
  Search search(code, text);
  std::vector<Match> found;
  size_t from = 0;
  while (from <= text.size()) {
    const int count = search.next(from);
    if (count == PCRE2_ERROR_NOMATCH) break;
    if (count == PCRE2_ERROR_MATCHLIMIT)
      fail("{}: regular expression {}: too much work on a text of {} bytes", where_,
           excerpt(source_), text.size());
    if (count < 0)
      fail("{}: regular expression {}: {}", where_, excerpt(source_), pcre2_message(count));
    const Match next = search.found();
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
