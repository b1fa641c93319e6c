#include "dofla/checkpoint/tokenizer/token_decoder.h"

#include <charconv>
#include <optional>

#include "dofla/checkpoint/tokenizer/byte_level.h"
#include "dofla/checkpoint/tokenizer/normalizer.h"
#include "dofla/checkpoint/tokenizer/unicode.h"

namespace dofla {
namespace {

std::optional<char> fallback_byte(std::string_view token) {  // "<0xE2>"
  if (token.size() != 6 || !token.starts_with("<0x") || token.back() != '>') return std::nullopt;
  uint8_t byte = 0;
  const char* end = token.data() + 5;
  if (std::from_chars(token.data() + 3, end, byte, 16).ptr != end) return std::nullopt;
  return static_cast<char>(byte);
}

}  // namespace

TokenDecoder TokenDecoder::parse(const JsonView& json) {
  TokenDecoder decoder;
  if (json.is_null()) {
    decoder.join_ = Join::kSpaces;
  } else {
    decoder.parse_step(json);
  }
  return decoder;
}

TokenDecoder TokenDecoder::byte_level() {
  TokenDecoder decoder;
  decoder.join_ = Join::kByteLevel;
  return decoder;
}

void TokenDecoder::parse_step(const JsonView& json) {
  const std::string type = json.text("type");
  if (type == "Sequence") {
    for (const JsonView& step : json.elements("decoders")) parse_step(step);
    return;
  }
  const bool per_token = join_ == Join::kPlain && !fused_;
  if (type == "Replace" && per_token) {
    steps_.push_back(Replace{Pattern::parse(json["pattern"]), json.text("content")});
  } else if (type == "Strip" && per_token) {
    steps_.push_back(parse_strip(json));
  } else if (type == "ByteLevel" && per_token) {
    join_ = Join::kByteLevel;
  } else if (type == "ByteFallback" && per_token) {
    join_ = Join::kByteFallback;
  } else if (type == "Fuse" && join_ != Join::kByteLevel) {
    fused_ = true;
  } else if (type == "Strip" && fused_ && strip_start_.start == 0) {
    strip_start_ = parse_strip(json);
    if (strip_start_.stop != 0)
      json.refuse("stop {} after Fuse is not supported", strip_start_.stop);
  } else if (type == "Replace" || type == "Strip" || type == "ByteLevel" ||
             type == "ByteFallback" || type == "Fuse") {
    json.refuse("decoder {} at this place of the sequence is not supported", type);
  } else {
    json.refuse("decoder {} is not supported", type);
  }
}

TokenDecoder::Strip TokenDecoder::parse_strip(const JsonView& json) {
  Strip strip = {json.text("content"), json.integer("start"), json.integer("stop")};
  if (strip.content.empty() || character_at(strip.content, 0).length != strip.content.size())
    json.refuse("content: expected one character, found '{}'", strip.content);
  if (strip.start < 0 || strip.stop < 0) json.refuse("start and stop must not be negative");
  return strip;
}

void TokenDecoder::next(std::string_view token, TextDecodeState& state, std::string& out) const {
  std::string storage;
  const size_t longest = longest_rewritten(token.size());
  for (const Step& step : steps_) {
    if (const Replace* replace = std::get_if<Replace>(&step)) {
      storage = replaced(token, replace->pattern, replace->content, longest);
      token = storage;
    } else {
      const Strip& strip = std::get<Strip>(step);
      for (int64_t i = 0; i < strip.start && token.starts_with(strip.content); ++i)
        token.remove_prefix(strip.content.size());
      for (int64_t i = 0; i < strip.stop && token.ends_with(strip.content); ++i)
        token.remove_suffix(strip.content.size());
    }
  }
  switch (join_) {
    case Join::kPlain:
      emit(token, state, out);
      break;
    case Join::kSpaces:
      if (state.text_started) out.push_back(' ');
      state.text_started = true;
      out.append(token);
      break;
    case Join::kByteFallback:
      if (const std::optional<char> byte = fallback_byte(token)) {
        state.held.push_back(*byte);
      } else {
        end_bytes(state, out);
        emit(token, state, out);
      }
      break;
    case Join::kByteLevel:
      append_token_bytes(token, state.held);
      state.held.erase(0, append_repaired(state.held, /*more_follows=*/true, out));
      break;
  }
}

void TokenDecoder::finish(TextDecodeState& state, std::string& out) const {
  if (join_ == Join::kByteFallback) end_bytes(state, out);
  if (join_ == Join::kByteLevel) append_repaired(state.held, /*more_follows=*/false, out);
  state = {};
}

void TokenDecoder::end_bytes(TextDecodeState& state, std::string& out) const {
  if (is_utf8(state.held)) {
    emit(state.held, state, out);
  } else {
    for (size_t i = 0; i < state.held.size(); ++i) emit(kReplacementCharacter, state, out);
  }
  state.held.clear();
}

void TokenDecoder::emit(std::string_view text, TextDecodeState& state, std::string& out) const {
  while (!text.empty() && !state.text_started) {
    if (state.stripped < strip_start_.start && text.starts_with(strip_start_.content)) {
      text.remove_prefix(strip_start_.content.size());
      ++state.stripped;
    } else {
      state.text_started = true;
    }
  }
  out.append(text);
}

}  // namespace dofla
