#include "dofla/pipeline/text.h"

#include <algorithm>
#include <memory>

#include "dofla/checkpoint/tokenizer.h"
#include "dofla/core/error.h"

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
  result.next = [ids, at = size_t{0}](TokenIds& sequence) mutable {
    if (at == ids->size()) return false;
    sequence = (*ids)[at++];
    return true;
  };
  return result;
}

Windows open_files(const Checkpoint& model, const TextSource& source, const Progress& progress) {
  const ModelConfig& config = model.config();
  if (source.length > config.context)
    fail("windows of {} tokens are longer than the model's context of {}", source.length,
         config.context);
  const WindowOptions options = {.length = source.length > 0 ? source.length : config.context,
                                 .end_of_text = config.end_of_text,
                                 .most = source.most,
                                 .vocabulary = config.vocabulary,
                                 .documents = {.skip_bad_lines = source.skip_bad_lines}};
  const TextFiles files(source.files);
  const auto tokenizer = std::make_shared<Tokenizer>(Tokenizer::load(model.folder()));
  const Encode encode = [tokenizer](std::string_view text) { return tokenizer->encode(text); };

  Windows result;
  TokenIds window;
  WindowReader first(files, encode, options);
  while (first.next(window)) {
    result.predicted_tokens += static_cast<int64_t>(window.size()) - 1;
    report(progress, {"read the text", result.predicted_tokens, 0, "tokens"});
  }
  result.skipped = first.skipped();
  const auto windows = std::make_shared<WindowReader>(files, encode, options);
  result.next = [windows](TokenIds& sequence) { return windows->next(sequence); };
  return result;
}

}  // namespace

Windows open_windows(const Checkpoint& model, const TextSource& source, const Progress& progress) {
  require(source.files.empty() != source.ids.empty(),
          "a text is either files or token ids, and one of them");
  return source.ids.empty() ? open_files(model, source, progress)
                            : open_ids(model.config(), source);
}

std::vector<TokenIds> read_windows(const Checkpoint& model, const TextSource& source,
                                   const Progress& progress, SkippedLines* skipped) {
  if (source.files.empty() && !source.ids.empty())
    return read_id_file(model.config(), source, true);
  const Windows text = open_windows(model, source, progress);
  if (skipped != nullptr) *skipped = text.skipped;
  std::vector<TokenIds> windows;
  for (TokenIds window; text.next(window);) windows.push_back(window);
  return windows;
}

std::vector<TokenIds> first_windows(const std::vector<TokenIds>& windows, int64_t count) {
  const auto most = std::min(static_cast<size_t>(count), windows.size());
  return {windows.begin(), windows.begin() + static_cast<std::ptrdiff_t>(most)};
}

}  // namespace dofla
