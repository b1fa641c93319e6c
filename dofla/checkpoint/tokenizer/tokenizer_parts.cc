#include "dofla/checkpoint/tokenizer/tokenizer_parts.h"

#include <algorithm>
#include <system_error>
#include <utility>

#include "dofla/checkpoint/tokenizer/tokenizer_file.h"

namespace dofla {
namespace {

BpeSettings parse_bpe_settings(const JsonView& model) {
  if (model.has("dropout")) model.refuse("dropout is not supported");
  for (const char* affix : {"continuing_subword_prefix", "end_of_word_suffix"})
    if (model.has(affix) && !model.text(affix).empty())
      model.refuse("{} '{}' is not supported", affix, model.text(affix));
  BpeSettings settings;
  if (model.has("unk_token")) settings.unknown = model.text("unk_token");
  settings.fuse_unknown = model.flag("fuse_unk", false);
  settings.byte_fallback = model.flag("byte_fallback", false);
  settings.ignore_merges = model.flag("ignore_merges", false);
  return settings;
}

// Words as short as they may be make the cache worth having; without a pre-tokenizer, a word is
// the whole text.
void cut_words_short(TokenizerParts& parts) {
  if (!parts.pre_tokenizer.byte_level() && parts.bpe.may_cut_before(kSpaceMark))
    parts.pre_tokenizer.cut_before_marks();
}

JsonView optional_member(const JsonView& json, std::string_view name) {
  static const Json kNull;
  if (json.has(name)) return json[name];
  return JsonView(kNull, json.where());
}

// Settings that would make vocab.json + merges.txt mean something else than in GPT-2.
bool gpt2_add_prefix_space(const fs::path& folder) {
  std::error_code unreadable;  // counts as absent
  if (fs::exists(folder / "added_tokens.json", unreadable))
    fail("{}: not supported without tokenizer.json; save the tokenizer with its fast form",
         (folder / "added_tokens.json").string());
  const fs::path path = folder / "tokenizer_config.json";
  if (!fs::exists(path, unreadable)) return false;
  const Json json = load_json(path);
  const JsonView config(json, path.string());
  if (config.has("tokenizer_class")) {
    const std::string name = config.text("tokenizer_class");
    if (name != "GPT2Tokenizer" && name != "GPT2TokenizerFast")
      config.refuse("tokenizer_class {} is not supported without tokenizer.json", name);
  }
  return config.flag("add_prefix_space", false);
}

MergeList load_merges(const fs::path& path) {
  const std::string text = read_text(path);
  MergeList merges;
  int64_t number = 0;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    std::string_view line = std::string_view(text).substr(begin, end - begin);
    if (line.ends_with('\r')) line.remove_suffix(1);
    begin = end + 1;
    ++number;
    if (line.starts_with("#version") || (line.empty() && begin >= text.size())) continue;
    if (!merges.add_line(line))
      fail("{}: line {}: expected two tokens and a space between, found '{}'", path.string(),
           number, line);
  }
  return merges;
}

}  // namespace

std::unique_ptr<EncodeWorkspace> WorkspacePool::take() {
  const std::lock_guard lock(mutex_);
  if (idle_.empty()) return std::make_unique<EncodeWorkspace>();
  std::unique_ptr<EncodeWorkspace> workspace = std::move(idle_.back());
  idle_.pop_back();
  return workspace;
}

void WorkspacePool::give_back(std::unique_ptr<EncodeWorkspace> workspace) {
  const std::lock_guard lock(mutex_);
  idle_.push_back(std::move(workspace));
}

std::shared_ptr<const TokenizerParts> parse_tokenizer_json(std::string_view json,
                                                           std::string_view where) {
  TokenizerFile file = read_tokenizer_file(json, where);
  const JsonView root(file.settings, std::string(where));
  const JsonView model = root["model"];
  if (model.has("type") && model.text("type") != "BPE")
    model.refuse("tokenizer model {} is not supported, only BPE", model.text("type"));
  if (!file.has_vocabulary) model.refuse("'vocab' is missing or not an object");
  if (!file.has_merges) model.refuse("'merges' is missing or not an array");
  if (file.vocabulary.count() == 0) model.refuse("'vocab' is empty");

  auto parts = std::make_shared<TokenizerParts>();
  parts->normalizer = Normalizer::parse(optional_member(root, "normalizer"));
  parts->pre_tokenizer = PreTokenizer::parse(optional_member(root, "pre_tokenizer"));
  parts->post_processor = PostProcessor::parse(optional_member(root, "post_processor"));
  parts->decoder = TokenDecoder::parse(optional_member(root, "decoder"));
  parts->bpe =
      Bpe(std::move(file.vocabulary), file.merges, parse_bpe_settings(model), model.where());
  if (root.has("added_tokens"))
    parts->added = AddedTokens(parse_added_tokens(root["added_tokens"]), parts->bpe.vocabulary(),
                               parts->normalizer, root["added_tokens"].where());
  cut_words_short(*parts);
  return parts;
}

std::shared_ptr<const TokenizerParts> load_gpt2_files(const fs::path& folder) {
  const fs::path vocabulary_path = folder / "vocab.json";
  const Json json = load_json(vocabulary_path);
  if (!json.is_object()) fail("{}: expected an object", vocabulary_path.string());
  Vocabulary vocabulary;
  for (const auto& [token, id] : json.items())
    vocabulary.add(token, JsonView(id, vocabulary_path.string() + ": " + token).integer(),
                   vocabulary_path.string());
  if (vocabulary.count() == 0) fail("{}: no tokens", vocabulary_path.string());

  auto parts = std::make_shared<TokenizerParts>();
  parts->pre_tokenizer = PreTokenizer::gpt2(gpt2_add_prefix_space(folder));
  parts->decoder = TokenDecoder::byte_level();
  std::vector<AddedToken> added;
  constexpr std::string_view kEndOfText = "<|endoftext|>";
  if (const auto id = vocabulary.find(kEndOfText)) {
    added.emplace_back();
    added.back().content = kEndOfText;
    added.back().id = *id;
    added.back().special = true;
  }
  const fs::path merges_path = folder / "merges.txt";
  parts->bpe = Bpe(std::move(vocabulary), load_merges(merges_path), {}, merges_path.string());
  parts->added = AddedTokens(std::move(added), parts->bpe.vocabulary(), parts->normalizer,
                             vocabulary_path.string());
  return parts;
}

}  // namespace dofla
