#include "dofla/checkpoint/tokenizer/normalizer.h"

#include <algorithm>
#include <cstdlib>
#include <memory>

#include <utf8proc.h>

#include "dofla/checkpoint/tokenizer/unicode.h"

namespace dofla {
namespace {

std::string mapped(std::string_view text, int options) {
  utf8proc_uint8_t* raw = nullptr;
  const utf8proc_ssize_t size = utf8proc_map(reinterpret_cast<const utf8proc_uint8_t*>(text.data()),
                                             static_cast<utf8proc_ssize_t>(text.size()), &raw,
                                             static_cast<utf8proc_option_t>(options));
  const std::unique_ptr<utf8proc_uint8_t, decltype(&std::free)> owner(raw, &std::free);
  if (size < 0) fail("Unicode normalization: {}", utf8proc_errmsg(size));
  return std::string(reinterpret_cast<const char*>(raw), static_cast<size_t>(size));
}

bool is_ascii(std::string_view text) {
  return std::all_of(text.begin(), text.end(), [](char c) { return (c & 0x80) == 0; });
}

}  // namespace

Normalizer Normalizer::parse(const JsonView& json) {
  Normalizer out;
  if (!json.is_null()) out.parse_step(json);
  return out;
}

void Normalizer::parse_step(const JsonView& json) {
  const std::string type = json.text("type");
  if (type == "Sequence") {
    for (const JsonView& step : json.elements("normalizers")) parse_step(step);
  } else if (type == "NFC") {
    steps_.push_back(UnicodeForm::kNfc);
  } else if (type == "NFD") {
    steps_.push_back(UnicodeForm::kNfd);
  } else if (type == "NFKC") {
    steps_.push_back(UnicodeForm::kNfkc);
  } else if (type == "NFKD") {
    steps_.push_back(UnicodeForm::kNfkd);
  } else if (type == "Prepend") {
    steps_.push_back(Prepend{json.text("prepend")});
  } else if (type == "Replace") {
    steps_.push_back(Replace{Pattern::parse(json["pattern"]), json.text("content")});
  } else {
    json.refuse("normalizer {} is not supported", type);
  }
}

std::string_view Normalizer::apply(std::string_view text, std::string& storage) const {
  const size_t longest = longest_rewritten(text.size());
  for (const Step& step : steps_) {
    if (text.empty() || !changes(step, text)) continue;
    storage = rewritten(step, text, longest);
    text = storage;
  }
  return text;
}

bool Normalizer::changes(const Step& step, std::string_view text) {
  const UnicodeForm* form = std::get_if<UnicodeForm>(&step);
  if (form == nullptr) return true;
  return !(*form == UnicodeForm::kNfc ? is_quickly_nfc(text) : is_ascii(text));
}

std::string Normalizer::rewritten(const Step& step, std::string_view text, size_t longest) {
  if (const Prepend* prepend = std::get_if<Prepend>(&step))
    return prepend->text + std::string(text);
  if (const Replace* replace = std::get_if<Replace>(&step))
    return replaced(text, replace->pattern, replace->content, longest);
  switch (std::get<UnicodeForm>(step)) {
    case UnicodeForm::kNfc:
      return mapped(text, UTF8PROC_STABLE | UTF8PROC_COMPOSE);
    case UnicodeForm::kNfd:
      return mapped(text, UTF8PROC_STABLE | UTF8PROC_DECOMPOSE);
    case UnicodeForm::kNfkc:
      return mapped(text, UTF8PROC_STABLE | UTF8PROC_COMPOSE | UTF8PROC_COMPAT);
    case UnicodeForm::kNfkd:
      return mapped(text, UTF8PROC_STABLE | UTF8PROC_DECOMPOSE | UTF8PROC_COMPAT);
  }
  return std::string(text);
}

void append_replaced(std::string_view text, std::string_view from, std::string_view to,
                     std::string& out) {
  size_t done = 0;
  for (size_t at = text.find(from); at != text.npos; at = text.find(from, done)) {
    out.append(text, done, at - done).append(to);
    done = at + from.size();
  }
  out.append(text, done);
}

std::string replaced(std::string_view text, const Pattern& pattern, std::string_view to,
                     size_t longest) {
  std::string out;
  const auto bound = [&](size_t bytes) {
    if (bytes > longest)
      fail("{}: makes more than {} bytes of a text, the most that is allowed for one of its length",
           pattern.where(), longest);
  };
  if (!pattern.is_regex()) {
    const std::string& from = pattern.source();
    size_t bytes = text.size();
    for (size_t at = text.find(from); at != text.npos; at = text.find(from, at + from.size()))
      bound(bytes = bytes - from.size() + to.size());
    append_replaced(text, from, to, out);
    return out;
  }
  size_t done = 0;
  for (const Pattern::Match& match : pattern.matches(text)) {
    out.append(text, done, match.begin - done).append(to);
    done = match.end;
    bound(out.size());
  }
  return out.append(text, done);
}

bool is_quickly_nfc(std::string_view text) {
  // Below U+0300 (first byte 0xCC) everything is composed. Above, a character is safe if it never
  // combines with the one before, has no canonical decomposition and is no conjoining Hangul.
  for (size_t at = 0; at < text.size();) {
    if (static_cast<uint8_t>(text[at]) < 0xCC) {
      ++at;
      continue;
    }
    const Character character = character_at(text, at);
    const auto code = static_cast<utf8proc_int32_t>(character.code);
    const utf8proc_property_t* property = utf8proc_get_property(code);
    constexpr uint16_t kNone = UINT16_MAX;
    constexpr uint16_t kSecond = 0x8000;  // indices of characters that combine backwards
    const bool decomposes = property->decomp_seqindex != kNone && property->decomp_type == 0;
    const bool combines = property->combining_class != 0 ||
                          (property->comb_index != kNone && property->comb_index >= kSecond);
    const bool hangul = code >= 0x1100 && code <= 0x11FF;
    if (decomposes || combines || hangul) return false;
    at += character.length;
  }
  return true;
}

}  // namespace dofla
