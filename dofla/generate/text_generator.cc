#include "dofla/generate/text_generator.h"

#include "dofla/core/error.h"

namespace dofla {
namespace {

// Without a prompt the model starts as it does at the beginning of a document.
TokenIds beginning(const ModelConfig& config) {
  if (config.begin_of_text) return {*config.begin_of_text};
  if (config.end_of_text) return {*config.end_of_text};
  fail("the model has no token to begin a text with: give a prompt, or ids");
}

TokenIds ids_of(const Prompt& prompt, const ModelConfig& config,
                const std::optional<Tokenizer>& tokenizer) {
  if (!prompt.ids.empty()) return prompt.ids;
  if (prompt.text.empty()) return beginning(config);
  require(tokenizer.has_value(), "a text to continue needs a tokenizer");
  TokenIds ids = tokenizer->encode(prompt.text);
  return ids.empty() ? beginning(config) : ids;
}

}  // namespace

TextGenerator::TextGenerator(const Transformer& model, const std::optional<Tokenizer>& tokenizer,
                             const Prompt& prompt, const GenerateOptions& options)
    : stop_at_end_of_text_(options.stop_at_end_of_text),
      end_of_text_(model.config().end_of_text),
      generator_(model, ids_of(prompt, model.config(), tokenizer), options) {
  if (!tokenizer) return;
  decoder_.emplace(*tokenizer);
  // The decoder reads a prompt first: SentencePiece tokenizers drop the space before the first word
  // of a text, which the first word of a continuation must keep.
  const bool continues = !prompt.text.empty() || !prompt.ids.empty();
  if (continues)
    for (const int64_t id : generator_.prompt()) decoder_->next(id);
}

std::optional<Piece> TextGenerator::next() {
  const std::optional<int64_t> id = generator_.next();
  if (!id) return std::nullopt;
  Piece piece = {*id, ""};
  if (!decoder_) return piece;
  if (!stop_at_end_of_text_ || *id != end_of_text_) piece.text = decoder_->next(*id);
  if (generator_.done()) piece.text += decoder_->finish();
  return piece;
}

}  // namespace dofla
