#include "dofla/serve/token_texts.h"

#include "dofla/checkpoint/tokenizer/unicode.h"

namespace dofla {

void TokenTexts::fill() const {
  // Read first, so that a decoder which strips the beginning of a text strips that.
  const std::vector<int64_t> before = tokenizer_.encode("a", /*add_special=*/false);
  texts_.resize(static_cast<size_t>(tokenizer_.vocabulary()));
  for (int64_t id = 0; id < tokenizer_.vocabulary(); ++id) {
    StreamDecoder decoder(tokenizer_);
    for (const int64_t one : before) decoder.next(one);
    std::string text = decoder.next(id);
    text += decoder.finish();
    if (text.find(kReplacementCharacter) != text.npos) text = tokenizer_.token(id).value_or("");
    texts_[static_cast<size_t>(id)] = std::move(text);
  }
}

const std::string& TokenTexts::text(int64_t id) const {
  static const std::string none;  // an embedding that no token has
  std::call_once(filled_, [this] { fill(); });
  const auto index = static_cast<size_t>(id);
  return index < texts_.size() ? texts_[index] : none;
}

}  // namespace dofla
