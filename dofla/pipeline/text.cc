#include "dofla/pipeline/text.h"

#include <algorithm>
#include <limits>
#include <memory>

#include "dofla/checkpoint/tokenizer.h"
#include "dofla/core/error.h"
#include "dofla/data/token_cache.h"
#include "dofla/data/token_writer.h"
#include "dofla/data/tokenize.h"

namespace dofla {
namespace {

std::vector<TokenIds> read_id_file(const ModelConfig& config, const TextSource& source,
                                   bool same_length) {
  std::vector<TokenIds> ids = read_ids(source.ids, {.vocabulary = config.vocabulary,
                                                    .shortest = 2,
                                                    .longest = config.context,
                                                    .same_length = same_length});
  const auto most = static_cast<size_t>(source.most);
  if (most > 0 && most < ids.size()) ids.resize(most);
  return ids;
}

Windows open_ids(const ModelConfig& config, const TextSource& source) {
  auto ids = std::make_shared<std::vector<TokenIds>>(read_id_file(config, source, false));
  Windows result;
  for (const TokenIds& sequence : *ids)
    result.predicted_tokens += static_cast<int64_t>(sequence.size()) - 1;
  const auto at = std::make_shared<size_t>(0);
  result.next = [ids, at](TokenIds& sequence) {
    if (*at == ids->size()) return false;
    sequence = (*ids)[(*at)++];
    return true;
  };
  result.rewind = [at] { *at = 0; };
  return result;
}

int64_t length_of(const ModelConfig& config, const TextSource& source) {
  if (source.length > config.context)
    fail("windows of {} tokens are longer than the model's context of {}", source.length,
         config.context);
  return source.length > 0 ? source.length : config.context;
}

TokenizeOptions tokenize_options(const ModelConfig& config, const TextSource& source) {
  const int64_t length = length_of(config, source);
  const bool limited =
      source.most > 0 && source.most <= std::numeric_limits<int64_t>::max() / length;
  return {.end_of_text = config.end_of_text,
          .most = limited ? source.most * length : 0,
          .vocabulary = config.vocabulary,
          .documents = {.skip_bad_lines = source.skip_bad_lines}};
}

// What tokens depend on beside the text.
Json settings_of(const Checkpoint& model, const TokenizeOptions& options) {
  return {{"tokenizer", tokenizer_fingerprint(model.folder())},
          {"vocabulary", options.vocabulary},
          {"end_of_text", options.end_of_text ? Json(*options.end_of_text) : Json()},
          {"most", options.most},
          {"skip_bad_lines", options.documents.skip_bad_lines}};
}

using StoredTokens = std::shared_ptr<const TokenStore>;

StoredTokens make_tokens(const Checkpoint& model, const TextFiles& files,
                         const TokenizeOptions& options, const TokenCache* cache,
                         const Progress& progress, TextRemarks& remarks) {
  const Tokenizer tokenizer = Tokenizer::load(model.folder());
  TokenWriter writer(options.vocabulary, cache != nullptr ? cache->file() : fs::path());
  const Tokenized done = tokenize(
      files, [&](std::string_view text) { return tokenizer.encode(text); }, options,
      [&](std::span<const int64_t> ids) { writer.append(ids); }, progress);
  remarks.skipped = done.skipped;
  if (done.tokens < 2)
    fail("the text has {} token{}: at least 2 are needed to predict one", done.tokens,
         done.tokens == 1 ? "" : "s");
  if (cache == nullptr) return writer.store();
  const bool kept = writer.keep([&](std::span<const std::byte> hashes) {
    return cache->ending(hashes, done.tokens, done.files, done.skipped);
  });
  std::string defect;
  if (kept)
    if (const std::optional<TokenFileContents> again = cache->find(defect)) {
      remarks.token_cache.push_back(
          fmt::format("{}: {} tokens, kept for the next run", cache->file().string(), done.tokens));
      return again->tokens;
    }
  if (kept) fail("{}", defect.empty() ? cache->file().string() + ": was removed" : defect);
  remarks.token_cache.push_back("the tokens are not kept: " + writer.not_kept());
  return writer.store();
}

StoredTokens tokens_of(const Checkpoint& model, const TextSource& source, const Progress& progress,
                       TextRemarks& remarks) {
  const TokenizeOptions options = tokenize_options(model.config(), source);
  const TextFiles files(source.files);
  const bool few = options.most > 0 && options.most <= kFewTokens;
  if (source.token_cache.empty() || few)
    return make_tokens(model, files, options, nullptr, progress, remarks);
  const TokenCache cache(source.token_cache, files, settings_of(model, options));
  std::string defect;
  if (std::optional<TokenFileContents> found = cache.find(defect)) {
    remarks.skipped = std::move(found->skipped);
    remarks.token_cache.push_back(fmt::format("{}: {} tokens, made by an earlier run",
                                              cache.file().string(), found->tokens->count()));
    return std::move(found->tokens);
  }
  if (!defect.empty()) remarks.token_cache.push_back(defect + "; the tokens are made again");
  return make_tokens(model, files, options, &cache, progress, remarks);
}

Windows open_files(const Checkpoint& model, const TextSource& source, const Progress& progress) {
  Windows result;
  const StoredTokens tokens = tokens_of(model, source, progress, result.remarks);
  const int64_t length = length_of(model.config(), source);
  const int64_t whole = tokens->count() / length, rest = tokens->count() % length;
  result.predicted_tokens = whole * (length - 1) + std::max<int64_t>(rest - 1, 0);
  const auto at = std::make_shared<int64_t>(0);
  result.next = [tokens, length, at](TokenIds& window) {
    const int64_t size = std::min(length, tokens->count() - *at);
    if (size < 2) return false;
    window.resize(static_cast<size_t>(size));
    tokens->read(*at, window);
    *at += size;
    return true;
  };
  result.rewind = [at] { *at = 0; };
  return result;
}

}  // namespace

Windows open_windows(const Checkpoint& model, const TextSource& source, const Progress& progress) {
  require(source.files.empty() != source.ids.empty(),
          "a text is either files or token ids, and one of them");
  return source.ids.empty() ? open_files(model, source, progress)
                            : open_ids(model.config(), source);
}

WindowSet read_windows(const Checkpoint& model, const TextSource& source, const Progress& progress,
                       TextRemarks* remarks) {
  require(source.files.empty() != source.ids.empty(),
          "a text is either files or token ids, and one of them");
  if (!source.ids.empty()) return read_id_file(model.config(), source, true);
  TextRemarks unsaid;
  return {tokens_of(model, source, progress, remarks != nullptr ? *remarks : unsaid),
          length_of(model.config(), source)};
}

TokenIds read_running_text(const Checkpoint& model, const TextSource& source, int64_t most_tokens,
                           SkippedLines* skipped) {
  const Tokenizer tokenizer = Tokenizer::load(model.folder());
  DocumentReader documents(source.files, {.skip_bad_lines = source.skip_bad_lines});
  const int64_t vocabulary = model.config().vocabulary;
  TokenIds all;
  while (std::ssize(all) < most_tokens) {
    const std::optional<std::string> document = documents.next();
    if (!document) break;
    for (const int64_t id : tokenizer.encode(*document + "\n\n", false)) {
      if (tokenizer.is_special(id)) continue;  // written out in the text
      if (id >= vocabulary)
        fail(
            "token id {} is outside the model's vocabulary of {}: the tokenizer is another model's",
            id, vocabulary);
      all.push_back(id);
    }
  }
  if (skipped != nullptr) *skipped = documents.skipped();
  if (std::ssize(all) > most_tokens) all.resize(static_cast<size_t>(most_tokens));
  return all;
}

std::vector<TokenIds> first_windows(const WindowSet& windows, int64_t count) {
  return windows.slice(0, std::min(static_cast<size_t>(count), windows.size())).all();
}

}  // namespace dofla
