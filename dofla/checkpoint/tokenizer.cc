#include "dofla/checkpoint/tokenizer.h"

#include <algorithm>
#include <system_error>

#include "dofla/checkpoint/tokenizer/byte_level.h"
#include "dofla/checkpoint/tokenizer/tokenizer_parts.h"
#include "dofla/checkpoint/tokenizer/unicode.h"
#include "dofla/core/error.h"
#include "dofla/core/hash.h"

namespace dofla {
namespace {

class Encoding {
 public:
  Encoding(const TokenizerParts& parts, EncodeWorkspace& workspace)
      : parts_(parts), workspace_(workspace) {}

  std::vector<int64_t> run(std::string_view text, bool add_special) {
    ids_.reserve(text.size() / 3 + 8);  // English has about four bytes a token
    if (add_special) append(parts_.post_processor.before);
    parts_.added.raw().split(text, workspace_.segments);
    for (const Segment& segment : workspace_.segments) {
      if (segment.id >= 0) {
        ids_.push_back(segment.id);
      } else {
        encode_raw(segment.text, segment.text.data() == text.data());
      }
    }
    if (add_special) append(parts_.post_processor.after);
    return std::move(ids_);
  }

  std::vector<int64_t> run(std::span<const TextPiece> pieces) {
    std::string text;  // since the last added token
    bool at_start = true;
    const auto flush = [&] {
      if (!text.empty()) encode_written(text, at_start);
      text.clear();
      at_start = false;
    };
    std::vector<Segment> segments;
    for (const TextPiece& piece : pieces) {
      if (!piece.markup) {
        text += piece.text;
        continue;
      }
      parts_.added.raw().split(piece.text, segments);
      for (const Segment& segment : segments) {
        if (segment.id < 0) {
          text += segment.text;
          continue;
        }
        flush();
        ids_.push_back(segment.id);
      }
    }
    flush();
    return std::move(ids_);
  }

 private:
  void append(const std::vector<int64_t>& ids) { ids_.insert(ids_.end(), ids.begin(), ids.end()); }

  // A text that strangers wrote, or part of it.
  void encode_written(const std::string& text, bool at_start) {
    parts_.added.raw().split(text, workspace_.segments, TokensFound::kSpaces);
    for (const Segment& segment : workspace_.segments) {
      if (segment.id >= 0) {
        ids_.push_back(segment.id);
      } else {
        encode_raw(segment.text, at_start && segment.text.data() == text.data(),
                   TokensFound::kSpaces);
      }
    }
  }

  void encode_raw(std::string_view raw, bool at_start, TokensFound found = TokensFound::kAll) {
    const std::string_view text = parts_.normalizer.apply(raw, workspace_.normalized);
    parts_.added.normalized().split(text, workspace_.normalized_segments, found);
    for (const Segment& segment : workspace_.normalized_segments) {
      if (segment.id >= 0) {
        ids_.push_back(segment.id);
        continue;
      }
      const bool opens_text = at_start && segment.text.data() == text.data();
      parts_.pre_tokenizer.split(segment.text, opens_text, workspace_.split, workspace_.words);
      for (const std::string_view word : workspace_.words) encode_word(word);
    }
  }

  void encode_word(std::string_view word) {
    const uint64_t hash = hash_bytes(word);
    if (workspace_.cache.append(word, hash, ids_)) return;
    const size_t before = ids_.size();
    std::string_view spelled = word;
    if (parts_.pre_tokenizer.byte_level()) {
      workspace_.characters.clear();
      append_byte_characters(word, workspace_.characters);
      spelled = workspace_.characters;
    }
    parts_.bpe.encode(spelled, workspace_.bpe, ids_);
    workspace_.cache.remember(word, hash, std::span(ids_).subspan(before));
  }

  const TokenizerParts& parts_;
  EncodeWorkspace& workspace_;
  std::vector<int64_t> ids_;
};

void decode_next(const TokenizerParts& parts, int64_t id, bool skip_special, TextDecodeState& state,
                 std::string& out) {
  if (skip_special && parts.added.is_special(id)) return;
  for (const Vocabulary* vocabulary : {&parts.added.vocabulary(), &parts.bpe.vocabulary()}) {
    if (!vocabulary->contains(id)) continue;
    parts.decoder.next(vocabulary->token(id), state, out);
    return;
  }
}

// tokenizer.json or, where there is none, the older two of GPT-2.
std::vector<fs::path> tokenizer_files(const fs::path& folder) {
  const fs::path one = folder / "tokenizer.json", vocabulary = folder / "vocab.json",
                 merges = folder / "merges.txt";
  std::error_code unreadable;  // counts as absent
  if (fs::exists(one, unreadable)) return {one};
  if (fs::exists(vocabulary, unreadable) && fs::exists(merges, unreadable))
    return {vocabulary, merges};
  fail("{}: no tokenizer: expected tokenizer.json, or vocab.json and merges.txt", folder.string());
}

}  // namespace

Tokenizer::Tokenizer(std::shared_ptr<const TokenizerParts> parts) : parts_(std::move(parts)) {}

Tokenizer Tokenizer::load(const fs::path& model_folder) {
  const std::vector<fs::path> files = tokenizer_files(model_folder);
  if (files.size() > 1) return Tokenizer(load_gpt2_files(model_folder));
  return parse(read_text(files.front()), files.front().string());
}

std::optional<Tokenizer> Tokenizer::find(const fs::path& model_folder) {
  std::error_code unreadable;
  const bool present = fs::exists(model_folder / "tokenizer.json", unreadable) ||
                       fs::exists(model_folder / "vocab.json", unreadable);
  return present ? std::optional(load(model_folder)) : std::nullopt;
}

uint64_t tokenizer_fingerprint(const fs::path& model_folder) {
  std::vector<fs::path> files = tokenizer_files(model_folder);
  std::error_code unreadable;
  const fs::path prefix = model_folder / "tokenizer_config.json";  // load_gpt2_files() asks it
  if (files.size() > 1 && fs::exists(prefix, unreadable)) files.push_back(prefix);
  std::vector<uint64_t> hashes;
  for (const fs::path& file : files) {
    const std::string text = read_text(file);
    hashes.push_back(xxh64(std::as_bytes(std::span(text))));
  }
  return xxh64(std::as_bytes(std::span(hashes)));
}

Tokenizer Tokenizer::parse(std::string_view json, std::string_view where) {
  return Tokenizer(parse_tokenizer_json(json, where));
}

std::vector<int64_t> Tokenizer::encode(std::string_view text, bool add_special) const {
  std::string repaired;
  if (!is_utf8(text)) {
    append_repaired(text, /*more_follows=*/false, repaired);
    text = repaired;
  }
  std::unique_ptr<EncodeWorkspace> workspace = parts_->workspaces.take();
  std::vector<int64_t> ids = Encoding(*parts_, *workspace).run(text, add_special);
  parts_->workspaces.give_back(std::move(workspace));
  return ids;
}

std::vector<int64_t> Tokenizer::encode(std::span<const TextPiece> pieces) const {
  std::vector<TextPiece> repaired(pieces.begin(), pieces.end());
  for (TextPiece& piece : repaired) {
    if (is_utf8(piece.text)) continue;
    std::string text;
    append_repaired(piece.text, /*more_follows=*/false, text);
    piece.text = std::move(text);
  }
  std::unique_ptr<EncodeWorkspace> workspace = parts_->workspaces.take();
  std::vector<int64_t> ids = Encoding(*parts_, *workspace).run(repaired);
  parts_->workspaces.give_back(std::move(workspace));
  return ids;
}

std::string Tokenizer::decode(std::span<const int64_t> ids, bool skip_special) const {
  TextDecodeState state;
  std::string out;
  for (const int64_t id : ids) decode_next(*parts_, id, skip_special, state, out);
  parts_->decoder.finish(state, out);
  return out;
}

int64_t Tokenizer::vocabulary() const {
  return std::max(parts_->bpe.vocabulary().size(), parts_->added.vocabulary().size());
}

std::optional<int64_t> Tokenizer::token_id(std::string_view token) const {
  const std::optional<int64_t> added = parts_->added.vocabulary().find(token);
  return added ? added : parts_->bpe.vocabulary().find(token);
}

std::optional<std::string> Tokenizer::token(int64_t id) const {
  for (const Vocabulary* vocabulary : {&parts_->added.vocabulary(), &parts_->bpe.vocabulary()})
    if (vocabulary->contains(id)) return std::string(vocabulary->token(id));
  return std::nullopt;
}

bool Tokenizer::is_special(int64_t id) const {
  return parts_->added.is_special(id);
}

StreamDecoder::StreamDecoder(const Tokenizer& tokenizer, bool skip_special)
    : parts_(tokenizer.parts_),
      state_(std::make_unique<TextDecodeState>()),
      skip_special_(skip_special) {}

StreamDecoder::~StreamDecoder() = default;
StreamDecoder::StreamDecoder(StreamDecoder&&) noexcept = default;
StreamDecoder& StreamDecoder::operator=(StreamDecoder&&) noexcept = default;

std::string StreamDecoder::next(int64_t id) {
  std::string out;
  decode_next(*parts_, id, skip_special_, *state_, out);
  return out;
}

std::string StreamDecoder::finish() {
  std::string out;
  parts_->decoder.finish(*state_, out);
  return out;
}

}  // namespace dofla
