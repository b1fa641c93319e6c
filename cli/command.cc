#include "cli/command.h"

#include <charconv>
#include <limits>
#include <memory>

#include "cli/assets.h"
#include "dofla/core/error.h"

namespace dofla::cli {
namespace {

template <class Number>
CLI::Validator number_check(Number low, Number high, std::string expected) {
  const auto check = [=](const std::string& text) -> std::string {
    Number number = 0;
    const char* end = text.data() + text.size();
    const auto [stop, error] = std::from_chars(text.data(), end, number);
    if (error == std::errc() && stop == end && number >= low && number <= high) return {};
    return fmt::format("expected {}, found {}", expected, text);
  };
  return CLI::Validator(check, "");
}

}  // namespace

void ModelArgument::add(CLI::App& app) {
  option_ = app.add_option("MODEL", folder_,
                           "Hugging Face model folder (left out: the built-in wiki-mini)");
  option_->type_name("");
}

fs::path ModelArgument::folder() const {
  if (option_->count() == 0) return built_in_model();
  if (folder_.empty()) fail("MODEL is an empty name; expected a Hugging Face model folder");
  return folder_;
}

void TextArguments::add(CLI::App& app, int64_t sequences) {
  sequences_ = sequences;
  CLI::Option* data =
      app.add_option("--data", data_,
                     ".txt files, or .jsonl with a \"text\" field a line; may be .zst or .gz\n"
                     "(left out: the built-in Wikipedia text)");
  data->type_name("F...");
  CLI::Option* ids =
      app.add_option("--ids", ids_, "JSON file of token ids instead of text: [[1, 2, 3], [4, 5]]");
  ids->type_name("F")->excludes(data);
  app.add_option("--length,--sequence-length", length_,
                 "tokens of a window (left out: the model's context)")
      ->type_name("L")
      ->check(whole_from(2))
      ->excludes(ids);
  app.add_option("--sequences", sequences_,
                 fmt::format("use the first T sequences only (left out: {})",
                             sequences > 0 ? std::to_string(sequences) : "all"))
      ->type_name("T")
      ->check(whole_from(1));
}

TextArguments::Sequences TextArguments::open(const fs::path& model_folder,
                                             const ModelConfig& config,
                                             const Progress& progress) const {
  return ids_.empty() ? open_files(model_folder, config, progress) : open_ids(config);
}

std::vector<TokenIds> TextArguments::read(const Checkpoint& checkpoint,
                                          const Progress& progress) const {
  const Sequences text = open(checkpoint.folder(), checkpoint.config(), progress);
  std::vector<TokenIds> windows;
  for (TokenIds window; text.next(window);) windows.push_back(window);
  return windows;
}

TextArguments::Sequences TextArguments::open_ids(const ModelConfig& config) const {
  auto ids = std::make_shared<std::vector<TokenIds>>(
      read_ids(ids_, {.vocabulary = config.vocabulary, .shortest = 2, .longest = config.context}));
  if (sequences_ > 0 && static_cast<size_t>(sequences_) < ids->size())
    ids->resize(static_cast<size_t>(sequences_));
  Sequences result;
  for (const TokenIds& sequence : *ids)
    result.predicted_tokens += static_cast<int64_t>(sequence.size()) - 1;
  result.next = [ids, at = size_t{0}](TokenIds& sequence) mutable {
    if (at == ids->size()) return false;
    sequence = (*ids)[at++];
    return true;
  };
  return result;
}

TextArguments::Sequences TextArguments::open_files(const fs::path& model_folder,
                                                   const ModelConfig& config,
                                                   const Progress& progress) const {
  if (length_ > config.context)
    fail("--length {} is more than the model's context of {}", length_, config.context);
  const WindowOptions options = {.length = length_ > 0 ? length_ : config.context,
                                 .end_of_text = config.end_of_text,
                                 .most = sequences_,
                                 .vocabulary = config.vocabulary};
  std::vector<fs::path> files(data_.begin(), data_.end());
  if (files.empty()) files.push_back(built_in_text());
  const auto tokenizer = std::make_shared<Tokenizer>(Tokenizer::load(model_folder));
  const Encode encode = [tokenizer](std::string_view text) { return tokenizer->encode(text); };

  Sequences result;
  TokenIds window;
  for (WindowReader windows(files, encode, options); windows.next(window);) {
    result.predicted_tokens += static_cast<int64_t>(window.size()) - 1;
    report(progress, {"read the text", result.predicted_tokens, 0, "tokens"});
  }
  const auto windows = std::make_shared<WindowReader>(std::move(files), encode, options);
  result.next = [windows](TokenIds& sequence) { return windows->next(sequence); };
  return result;
}

void add_json_flag(CLI::App& app, bool& json) {
  app.add_flag("--json", json, "print one JSON object on standard output and nothing else there");
}

std::optional<Tokenizer> find_tokenizer(const fs::path& model_folder) {
  std::error_code error;
  const bool present = fs::exists(model_folder / "tokenizer.json", error) ||
                       fs::exists(model_folder / "vocab.json", error);
  if (!present) return std::nullopt;
  return Tokenizer::load(model_folder);
}

CLI::Validator real_between(double low, double high) {
  return number_check<double>(low, high, fmt::format("a number from {} to {}", low, high));
}

CLI::Validator whole_between(int64_t low, int64_t high) {
  return number_check<int64_t>(low, high, fmt::format("a whole number from {} to {}", low, high));
}

CLI::Validator whole_from(int64_t low) {
  return number_check<int64_t>(low, std::numeric_limits<int64_t>::max(),
                               fmt::format("a whole number from {} up", low));
}

CLI::Validator seed_number() {
  constexpr uint64_t kHighest = std::numeric_limits<uint64_t>::max();
  return number_check<uint64_t>(0, kHighest, fmt::format("a whole number from 0 to {}", kHighest));
}

}  // namespace dofla::cli
