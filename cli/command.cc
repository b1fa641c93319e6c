#include "cli/command.h"

#include <charconv>
#include <limits>
#include <memory>

#include "cli/assets.h"
#include "cli/output.h"
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

void TextArguments::add(CLI::App& app, int64_t sequences, int64_t built_in_sequences) {
  default_sequences_ = sequences;
  built_in_sequences_ = built_in_sequences > 0 ? built_in_sequences : sequences;
  CLI::Option* data =
      app.add_option("--data", data_,
                     ".txt files, or .jsonl with a \"text\" field a line; may be .zst, .gz or\n"
                     "a pipe (left out: the built-in Wikipedia text)");
  data->type_name("F...");
  CLI::Option* ids =
      app.add_option("--ids", ids_, "JSON file of token ids instead of text: [[1, 2, 3], [4, 5]]");
  ids->type_name("F")->excludes(data);
  app.add_option("--length,--sequence-length", length_,
                 "tokens of a window (left out: the model's context)")
      ->type_name("L")
      ->check(whole_from(2))
      ->excludes(ids);
  std::string otherwise = sequences > 0 ? std::to_string(sequences) : "all";
  if (built_in_sequences_ != sequences)
    otherwise += fmt::format(", {} of the built-in text", built_in_sequences_);
  app.add_option("--sequences", sequences_,
                 fmt::format("use the first T sequences only (left out: {})", otherwise))
      ->type_name("T")
      ->check(whole_from(1));
  app.add_flag("--skip-bad-lines", skip_bad_lines_,
               "leave out lines of --data that are no JSON, no UTF-8 or too long, and count them")
      ->excludes(ids);
}

int64_t TextArguments::most_sequences() const {
  return sequences_.value_or(data_.empty() && ids_.empty() ? built_in_sequences_
                                                           : default_sequences_);
}

void TextArguments::remark_on_default(int64_t sequences) const {
  if (!sequences_ && sequences == most_sequences())
    remark(fmt::format("the first {} of the text; --sequences T takes more",
                       counted(sequences, "sequence")));
}

TextArguments::Sequences TextArguments::open(const fs::path& model_folder,
                                             const ModelConfig& config,
                                             const Progress& progress) const {
  return ids_.empty() ? open_files(model_folder, config, progress) : open_ids(config);
}

std::vector<std::string> TextArguments::files() const {
  if (!ids_.empty()) return {ids_};
  return data_.empty() ? std::vector<std::string>{built_in_text().string()} : data_;
}

std::vector<TokenIds> TextArguments::read(const Checkpoint& checkpoint,
                                          const Progress& progress) const {
  if (!ids_.empty()) return read_id_file(checkpoint.config(), true);
  const Sequences text = open(checkpoint.folder(), checkpoint.config(), progress);
  std::vector<TokenIds> windows;
  for (TokenIds window; text.next(window);) windows.push_back(window);
  return windows;
}

std::vector<TokenIds> TextArguments::read_id_file(const ModelConfig& config,
                                                  bool same_length) const {
  std::vector<TokenIds> ids = read_ids(ids_, {.vocabulary = config.vocabulary,
                                              .shortest = 2,
                                              .longest = config.context,
                                              .same_length = same_length});
  const auto most = static_cast<size_t>(most_sequences());
  if (most > 0 && most < ids.size()) ids.resize(most);
  return ids;
}

TextArguments::Sequences TextArguments::open_ids(const ModelConfig& config) const {
  auto ids = std::make_shared<std::vector<TokenIds>>(read_id_file(config, false));
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
                                 .most = most_sequences(),
                                 .vocabulary = config.vocabulary,
                                 .documents = {.skip_bad_lines = skip_bad_lines_}};
  const std::vector<std::string> names = this->files();
  const TextFiles files({names.begin(), names.end()});
  const auto tokenizer = std::make_shared<Tokenizer>(Tokenizer::load(model_folder));
  const Encode encode = [tokenizer](std::string_view text) { return tokenizer->encode(text); };

  Sequences result;
  TokenIds window;
  WindowReader first(files, encode, options);
  while (first.next(window)) {
    result.predicted_tokens += static_cast<int64_t>(window.size()) - 1;
    report(progress, {"read the text", result.predicted_tokens, 0, "tokens"});
  }
  if (const SkippedLines& skipped = first.skipped(); skipped.count > 0)
    remark(fmt::format("left out {}, the first: {}", counted(skipped.count, "bad line"),
                       one_line(skipped.first)));
  const auto windows = std::make_shared<WindowReader>(files, encode, options);
  result.next = [windows](TokenIds& sequence) { return windows->next(sequence); };
  return result;
}

CLI::Option* add_out(CLI::App& app, std::string& out, const char* help, const char* type) {
  const auto name = [](std::string& text) -> std::string {
    while (text.size() > 1 && text.ends_with('/')) text.pop_back();
    return text.empty() ? "expected a name, found an empty one" : "";
  };
  return app.add_option("--out", out, help)->type_name(type)->transform(CLI::Validator(name, ""));
}

std::string read_input(const std::string& file) {
  return read_text(file == "-" ? "/dev/stdin" : file, size_t{1} << 30, Input::kFileOrPipe);
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
