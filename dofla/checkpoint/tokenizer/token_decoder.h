// Tokens back to text, one token at a time.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "dofla/checkpoint/tokenizer/json_view.h"
#include "dofla/checkpoint/tokenizer/pattern.h"

namespace dofla {

// What a TokenDecoder remembers between two tokens.
struct TextDecodeState {
  std::string held;           // bytes that wait for the rest of their character
  int64_t stripped = 0;       // times that the text's start was stripped
  bool text_started = false;  // stripping is over
};

class TokenDecoder {
 public:
  // `decoder` of a tokenizer.json: null, ByteLevel, or Replace and Strip, then ByteFallback, Fuse
  // and Strip, in this order.
  static TokenDecoder parse(const JsonView& json);
  static TokenDecoder byte_level();

  // Appends the text that `token` completes.
  void next(std::string_view token, TextDecodeState& state, std::string& out) const;
  // Appends what is still held, and makes the state as new.
  void finish(TextDecodeState& state, std::string& out) const;

 private:
  struct Replace {
    Pattern pattern;
    std::string content;
  };
  struct Strip {
    std::string content;  // one character
    int64_t start = 0;
    int64_t stop = 0;
  };
  using Step = std::variant<Replace, Strip>;
  enum class Join {
    kSpaces,        // no decoder: a space between tokens
    kPlain,         // one after the other
    kByteFallback,  // <0xE2> is a byte; a run of them that is not UTF-8 gives a U+FFFD for each
    kByteLevel,     // tokens are in the byte-level alphabet
  };

  void parse_step(const JsonView& json);
  static Strip parse_strip(const JsonView& json);
  void emit(std::string_view text, TextDecodeState& state, std::string& out) const;
  void end_bytes(TextDecodeState& state, std::string& out) const;

  std::vector<Step> steps_;  // on each token by itself
  Join join_ = Join::kPlain;
  bool fused_ = false;  // what follows sees the whole text as one token
  Strip strip_start_;   // of the whole text
};

}  // namespace dofla
