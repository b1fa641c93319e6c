// Text to token ids and back, as the Hugging Face `tokenizers` library does it: byte-level BPE
// (GPT-2, GPT-NeoX, Llama 3, Qwen) and SentencePiece-style BPE with byte fallback (Llama, Mistral).
// What a tokenizer file asks for and we do not implement is refused by its name, with one
// exception: `truncation` and `padding` shape batches, not text, and Transformers resets them too.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "dofla/core/file.h"

namespace dofla {

struct TokenizerParts;
struct TextDecodeState;

// A stretch of a text that several hands wrote. In markup, added tokens written out become their
// ids; in what a user wrote they stay the characters that they are.
struct TextPiece {
  std::string text;
  bool markup = false;
};

// Copying a Tokenizer copies the handle. All functions may be called from several threads.
class Tokenizer {
 public:
  // Reads tokenizer.json or, where there is none, the older vocab.json + merges.txt of GPT-2.
  // Throws Error naming the file and the defect.
  static Tokenizer load(const fs::path& model_folder);
  // The same; nothing if the folder has none.
  static std::optional<Tokenizer> find(const fs::path& model_folder);

  // The same from the text of a tokenizer.json; errors begin with `where`.
  static Tokenizer parse(std::string_view json, std::string_view where);

  // Added tokens written out in the text ("<|endoftext|>") become their ids. `add_special` adds
  // what the post-processor puts around a text, such as <s>. Bytes that are not UTF-8 are read as
  // U+FFFD, one for each ill-formed sequence.
  std::vector<int64_t> encode(std::string_view text, bool add_special = true) const;

  // The ids of all pieces joined, without what the post-processor adds. Text between two added
  // tokens is one text, whoever wrote it.
  std::vector<int64_t> encode(std::span<const TextPiece> pieces) const;

  // Always UTF-8: bytes that form no character come out as U+FFFD. An id that no token has (models
  // pad their embeddings) gives no text. `skip_special` leaves special tokens out.
  std::string decode(std::span<const int64_t> ids, bool skip_special = false) const;

  int64_t vocabulary() const;  // one more than the largest id, added tokens included
  std::optional<int64_t> token_id(std::string_view token) const;  // as the file spells the token
  std::optional<std::string> token(int64_t id) const;
  bool is_special(int64_t id) const;

 private:
  friend class StreamDecoder;
  explicit Tokenizer(std::shared_ptr<const TokenizerParts> parts);

  std::shared_ptr<const TokenizerParts> parts_;
};

// Tells tokenizers apart: a hash of the files that load() reads. Throws Error if there are none.
uint64_t tokenizer_fingerprint(const fs::path& model_folder);

// Decodes ids one at a time: all next() and the finish() joined are decode() of all ids. Bytes of
// a character that later ids may complete are held back.
class StreamDecoder {
 public:
  explicit StreamDecoder(const Tokenizer& tokenizer, bool skip_special = false);
  ~StreamDecoder();
  StreamDecoder(StreamDecoder&&) noexcept;
  StreamDecoder& operator=(StreamDecoder&&) noexcept;

  std::string next(int64_t id);
  std::string finish();  // what was held back; the decoder then starts afresh

 private:
  std::shared_ptr<const TokenizerParts> parts_;
  std::unique_ptr<TextDecodeState> state_;
  bool skip_special_;
};

}  // namespace dofla
