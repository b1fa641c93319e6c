// Tokens of an answer as text: whole characters only, and nothing of a stop string.
#pragma once

#include <cstdint>
#include <deque>
#include <string>
#include <vector>

#include "dofla/checkpoint/tokenizer.h"

namespace dofla {

class TextStream {
 public:
  // What can be shown now: text that nothing can take back, and how many further tokens begin in
  // it, with the character of the text at which each does.
  struct Shown {
    std::string text;
    std::vector<int64_t> offsets;
  };

  // The decoder has read the prompt, if the text is to follow it.
  TextStream(StreamDecoder decoder, std::vector<std::string> stops);

  Shown next(int64_t id);
  Shown finish();  // what was held back

  // Whether a stop string was found: the text ends before it, and later tokens show nothing.
  bool stopped() const { return stopped_; }

 private:
  Shown show(bool all);
  size_t held_back() const;  // bytes at the end that may begin a stop string

  StreamDecoder decoder_;
  std::vector<std::string> stops_;
  struct Token {
    int64_t byte, character;  // where it begins
  };
  std::string held_;
  std::deque<Token> waiting_;
  int64_t shown_bytes_ = 0, shown_characters_ = 0;
  bool stopped_ = false;
};

}  // namespace dofla
