// Continues a text: tokens, and their text as it comes.
#pragma once

#include <optional>
#include <string>

#include "dofla/checkpoint/tokenizer.h"
#include "dofla/generate/generate.h"

namespace dofla {

// What is continued: a text or its token ids; with neither, the beginning of a document.
struct Prompt {
  std::string text = {};
  TokenIds ids = {};
};

struct Piece {
  int64_t id = 0;
  std::string text;  // none of an end-of-text token that stops, none without a tokenizer
};

class TextGenerator {
 public:
  // A text needs a tokenizer. Throws as Generator does, and Error where the model has no token to
  // begin a document with. The model must outlive it.
  TextGenerator(const Transformer& model, const std::optional<Tokenizer>& tokenizer,
                const Prompt& prompt, const GenerateOptions& options);

  // Nothing after the last one. All texts joined are UTF-8: bytes of a character that later tokens
  // may complete are held back, and come with the last piece if none does.
  std::optional<Piece> next();

  bool done() const { return generator_.done(); }
  const TokenIds& prompt() const { return generator_.prompt(); }
  const Generation& result() const { return generator_.result(); }

 private:
  bool stop_at_end_of_text_;
  std::optional<int64_t> end_of_text_;
  Generator generator_;
  std::optional<StreamDecoder> decoder_;
};

}  // namespace dofla
