#include "cli/compare_texts.h"

#include <algorithm>

#include "cli/assets.h"
#include "cli/usage_error.h"
#include "dofla/core/error.h"

namespace dofla::cli {
namespace {

// "valid" of "data/valid.jsonl.zst".
std::string stem_of(const std::string& file) {
  const std::string name = fs::path(file).filename().string();
  const std::string stem = name.substr(0, name.find('.', 1));
  return stem.empty() ? file : stem;
}

// The files that a model says it was trained on.
std::vector<fs::path> trained_on(const Checkpoint& model) {
  std::vector<fs::path> files;
  for (const char* block : {"linear_attention", "training"}) {
    const Json& config = model.config_json();
    if (!config.contains(block) || !config[block].is_object()) continue;
    const Json data = config[block].value("data", Json());
    if (!data.is_array()) continue;
    for (const Json& file : data)
      if (file.is_string()) files.push_back(fs::weakly_canonical(file.get<std::string>()));
  }
  return files;
}

std::vector<TokenIds> whole_windows(const Checkpoint& teacher, const TextSource& source,
                                    const Progress& progress) {
  TextRemarks remarks;
  const WindowSet windows = read_windows(teacher, source, progress, &remarks);
  remark_on(remarks);
  if (windows.length() != source.length)
    fail("{}: fewer tokens than a window of {}: give more text, or a smaller --length",
         source.files.front().string(), source.length);
  return windows.all();
}

}  // namespace

void CompareTexts::add(CLI::App& app) {
  app.add_option("--texts", texts_,
                 "texts to compare on, F or NAME=F: .txt, or .jsonl with a \"text\" field a\n"
                 "line; may be .zst or .gz (default: the built-in Wikipedia text)")
      ->type_name("F...");
  app.add_option("--in-domain", in_domain_,
                 "names of those texts that are of the kind that students were trained on")
      ->type_name("NAME...");
  app.add_option("--length", length_, "tokens of a window (default: the shortest context)")
      ->type_name("L")
      ->check(whole_from(2));
  app.add_option("--windows", windows_, "windows of every text (default: as --suite has it)")
      ->type_name("N")
      ->check(whole_from(1));
  add_token_cache(app, token_cache_);
}

std::vector<CompareTexts::NamedFile> CompareTexts::named_files() const {
  std::vector<NamedFile> files;
  if (texts_.empty()) files.push_back({"wikipedia", built_in_text("give --texts").string()});
  for (const std::string& text : texts_) {
    const size_t at = text.find('=');
    std::error_code error;
    const bool named = at != std::string::npos && !fs::exists(text, error);
    NamedFile file =
        named ? NamedFile{text.substr(0, at), text.substr(at + 1)} : NamedFile{stem_of(text), text};
    if (file.name.empty() || file.file.empty())
      throw UsageError(fmt::format("--texts {}: expected F or NAME=F", text));
    if (std::ranges::find(files, file.name, &NamedFile::name) != files.end())
      throw UsageError(fmt::format("--texts: two are called {}; name them: NAME=F", file.name));
    files.push_back(std::move(file));
  }
  for (const std::string& name : in_domain_)
    if (std::ranges::find(files, name, &NamedFile::name) == files.end())
      throw UsageError(fmt::format("--in-domain {}: no text has that name", name));
  return files;
}

CompareInput CompareTexts::read(const std::vector<const Checkpoint*>& models, int64_t otherwise,
                                const Progress& progress) const {
  int64_t length = length_;
  for (const Checkpoint* model : models) {
    const int64_t context = model->config().context;
    if (length_ > context)
      fail("--length {} is more than the context of {} of {}", length_, context,
           model->folder().string());
    length = length == 0 ? context : std::min(length, context);
  }
  CompareInput input;
  input.trained_on.resize(models.size() - 1);
  for (const NamedFile& file : named_files()) {
    TextToCompare text = {.name = file.name, .windows = {}};
    for (size_t s = 0; s < input.trained_on.size(); ++s)
      if (const auto files = trained_on(*models[s + 1]);
          std::ranges::find(files, fs::weakly_canonical(file.file)) != files.end()) {
        input.trained_on[s].push_back(file.name);
        text.in_domain = in_domain_.empty();
      }
    if (std::ranges::find(in_domain_, file.name) != in_domain_.end()) text.in_domain = true;
    text.windows = whole_windows(*models.front(),
                                 {.files = {file.file},
                                  .length = length,
                                  .most = windows_ > 0 ? windows_ : otherwise,
                                  .token_cache = token_cache_},
                                 progress);
    input.texts.push_back(std::move(text));
  }
  return input;
}

}  // namespace dofla::cli
