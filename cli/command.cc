#include "cli/command.h"

#include <charconv>
#include <limits>

#include "cli/assets.h"
#include "cli/output.h"
#include "dofla/core/error.h"
#include "dofla/core/file.h"

namespace dofla::cli {
namespace {

template <class Number>
CLI::Validator number_check(Number low, Number high, const std::string& expected) {
  const auto check = [=](const std::string& text) -> std::string {
    Number number = 0;
    const char* end = text.data() + text.size();
    const auto [stop, error] = std::from_chars(text.data(), end, number);
    if (error == std::errc() && stop == end && number >= low && number <= high) return {};
    return fmt::format("expected {}, found {}", expected, text);
  };
  return CLI::Validator(check, "", std::is_integral_v<Number> ? kWholeNumber : kRealNumber);
}

}  // namespace

HelpSection::HelpSection(CLI::App& app, const char* heading)
    : app_(app), heading_(heading), first_(app.get_options({}).size()) {}

HelpSection::~HelpSection() {
  const std::vector<CLI::Option*> options = app_.get_options({});
  const std::string unsorted = app_.get_help_ptr()->get_group();
  for (size_t i = first_; i < options.size(); ++i)
    if (options[i]->get_group() == unsorted) options[i]->group(heading_);
}

void add_token_cache(CLI::App& app, std::string& folder) {
  app.add_option("--token-cache", folder,
                 "keep the tokens of the text here, so that the next run starts at once (default:\n"
                 "they are made each time)")
      ->type_name("DIR")
      ->envname("DOFLA_TOKEN_CACHE");
}

void remark_on(const TextRemarks& remarks) {
  for (const std::string& what : remarks.token_cache) remark(one_line(what));
  if (remarks.skipped.count > 0)
    remark(fmt::format("left out {}, the first: {}", counted(remarks.skipped.count, "bad line"),
                       one_line(remarks.skipped.first)));
}

void ModelArgument::add(CLI::App& app) {
  option_ = app.add_option("MODEL", folder_,
                           "Hugging Face model folder (default: the built-in wiki-mini)");
  option_->type_name("");
}

fs::path ModelArgument::folder() const {
  if (option_->count() == 0) return built_in_model();
  if (folder_.empty()) fail("MODEL is an empty name; expected a Hugging Face model folder");
  return folder_;
}

void TextArguments::add(CLI::App& app, int64_t sequences, int64_t built_in_sequences) {
  const HelpSection section(app, "Text");
  default_sequences_ = sequences;
  built_in_sequences_ = built_in_sequences > 0 ? built_in_sequences : sequences;
  CLI::Option* data = app.add_option(
      "--data", data_,
      ".txt files, or .jsonl with a \"text\" field a line; may be .zst, .gz, a\n"
      "pipe, a folder or a pattern such as 'wiki-*.jsonl' (default: the built-in Wikipedia text)");
  data->type_name("F...");
  CLI::Option* ids =
      app.add_option("--ids", ids_, "JSON file of token ids instead of text: [[1, 2, 3], [4, 5]]");
  ids->type_name("F")->excludes(data);
  app.add_option("--length,--sequence-length", length_,
                 "tokens of a window (default: the model's context)")
      ->type_name("L")
      ->check(whole_from(2))
      ->excludes(ids);
  std::string otherwise = sequences > 0 ? std::to_string(sequences) : "all";
  if (built_in_sequences_ != sequences)
    otherwise += fmt::format(", {} of the built-in text", built_in_sequences_);
  app.add_option("--sequences", sequences_,
                 fmt::format("use the first T sequences only (default: {})", otherwise))
      ->type_name("T")
      ->check(whole_from(1));
  app.add_flag("--skip-bad-lines", skip_bad_lines_,
               "leave out lines of --data that are no JSON, no UTF-8 or too long, and count them")
      ->excludes(ids);
  add_token_cache(app, token_cache_);
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

TextSource TextArguments::source(const ModelConfig& config) const {
  if (length_ > config.context)
    fail("--length {} is more than the model's context of {}", length_, config.context);
  TextSource source = {.ids = ids_,
                       .length = length_,
                       .most = most_sequences(),
                       .skip_bad_lines = skip_bad_lines_,
                       .token_cache = token_cache_};
  const std::vector<std::string> names = files();
  if (ids_.empty()) source.files.assign(names.begin(), names.end());
  return source;
}

Windows TextArguments::open(const Checkpoint& checkpoint, const Progress& progress) const {
  Windows windows = open_windows(checkpoint, source(checkpoint.config()), progress);
  remark_on(windows.remarks);
  return windows;
}

std::vector<std::string> TextArguments::files() const {
  if (!ids_.empty()) return {ids_};
  return data_.empty() ? std::vector<std::string>{built_in_text().string()} : data_;
}

WindowSet TextArguments::read(const Checkpoint& checkpoint, const Progress& progress) const {
  TextRemarks remarks;
  WindowSet windows = read_windows(checkpoint, source(checkpoint.config()), progress, &remarks);
  remark_on(remarks);
  return windows;
}

TokenIds TextArguments::read_running(const Checkpoint& checkpoint, int64_t most_tokens) const {
  TextRemarks remarks;
  TokenIds text =
      read_running_text(checkpoint, source(checkpoint.config()), most_tokens, &remarks.skipped);
  remark_on(remarks);
  return text;
}

CLI::Option* add_out(CLI::App& app, std::string& out, const char* help, const char* type) {
  const auto name = [](std::string& text) -> std::string {
    while (text.size() > 1 && text.ends_with('/')) text.pop_back();
    return text.empty() ? "expected a name, found an empty one" : "";
  };
  return app.add_option("--out", out, help)->type_name(type)->transform(CLI::Validator(name, ""));
}

void prepare_new_folder(const std::string& out) {
  if (!fs::exists(fs::symlink_status(out))) prepare_place(out);
  const NewFolder trial(out);  // never committed
}

std::string read_input(const std::string& file) {
  return read_text(file == "-" ? "/dev/stdin" : file, size_t{1} << 30, Input::kFileOrPipe);
}

void add_json_flag(CLI::App& app, bool& json) {
  app.add_flag("--json", json, "print one JSON object on standard output and nothing else there");
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
