#include "dofla/checkpoint/tokenizer/pre_tokenizer.h"

#include "dofla/checkpoint/tokenizer/normalizer.h"

namespace dofla {

PreTokenizer PreTokenizer::parse(const JsonView& json) {
  PreTokenizer out;
  if (!json.is_null()) out.parse_step(json);
  return out;
}

PreTokenizer PreTokenizer::gpt2(bool add_prefix_space) {
  PreTokenizer out;
  out.byte_level_ = true;
  out.prefix_ = add_prefix_space ? Prefix::kAlways : Prefix::kNever;
  out.splitters_.push_back({word_end_of(kGpt2Pattern), {}, false, false});
  return out;
}

void PreTokenizer::parse_step(const JsonView& json) {
  const std::string type = json.text("type");
  if (type == "Sequence") {
    for (const JsonView& step : json.elements("pretokenizers")) parse_step(step);
    return;
  }
  if (byte_level_) json.refuse("{} after ByteLevel is not supported", type);
  if (type == "ByteLevel") {
    parse_byte_level(json);
  } else if (type == "Metaspace") {
    parse_metaspace(json);
  } else if (type == "Split") {
    parse_split(json);
  } else if (type == "Digits") {
    const bool single = json.flag("individual_digits", false);
    const Pattern digits = Pattern::regex(single ? R"(\p{N})" : R"(\p{N}+)", json.where());
    splitters_.push_back({nullptr, digits, false, false});
  } else {
    json.refuse("pre-tokenizer {} is not supported", type);
  }
}

void PreTokenizer::parse_byte_level(const JsonView& json) {
  if (json.flag("add_prefix_space", true)) {
    if (!splitters_.empty() || space_ != " ")
      json.refuse("add_prefix_space after another pre-tokenizer is not supported");
    prefix_ = Prefix::kAlways;
  }
  if (json.flag("use_regex", true))
    splitters_.push_back({word_end_of(kGpt2Pattern), {}, false, false});
  byte_level_ = true;
}

void PreTokenizer::parse_metaspace(const JsonView& json) {
  if (!splitters_.empty() || space_ != " ")
    json.refuse("Metaspace after another pre-tokenizer is not supported");
  if (const std::string mark = json.text("replacement"); mark != kSpaceMark)
    json.refuse("replacement '{}' is not supported, only '{}'", mark, kSpaceMark);
  space_ = kSpaceMark;
  const std::string scheme = json.has("prepend_scheme")            ? json.text("prepend_scheme")
                             : json.flag("add_prefix_space", true) ? "always"
                                                                   : "never";
  if (scheme == "always") {
    prefix_ = Prefix::kAlways;
  } else if (scheme == "first") {
    prefix_ = Prefix::kFirst;
  } else if (scheme != "never") {
    json.refuse("prepend_scheme {} is not supported", scheme);
  }
  if (json.flag("split", true)) splitters_.push_back({word_end_before_mark, {}, false, false});
}

void PreTokenizer::parse_split(const JsonView& json) {
  const std::string behavior = json.text("behavior");
  if (behavior != "Isolated" && behavior != "Removed")
    json.refuse("Split behavior {} is not supported", behavior);
  const bool invert = json.flag("invert", false);
  Splitter splitter;
  splitter.drop_matches = behavior == "Removed" && !invert;
  splitter.drop_gaps = behavior == "Removed" && invert;
  Pattern pattern = Pattern::parse(json["pattern"]);
  if (pattern.is_regex() && !splitter.drop_matches)  // these expressions leave no gaps
    splitter.word_end = word_end_of(pattern.source());
  if (splitter.word_end == nullptr) splitter.pattern = std::move(pattern);
  splitters_.push_back(std::move(splitter));
}

void PreTokenizer::split(std::string_view text, bool at_start, std::string& storage,
                         std::vector<std::string_view>& words) const {
  words.clear();
  if (text.empty()) return;
  if (space_ != " ") {
    storage.clear();
    append_replaced(text, " ", space_, storage);
    text = storage;
  }
  if ((prefix_ == Prefix::kAlways || (prefix_ == Prefix::kFirst && at_start)) &&
      !text.starts_with(space_)) {
    std::string prefixed = space_;
    prefixed += text;
    storage = std::move(prefixed);
    text = storage;
  }
  if (splitters_.empty()) {
    words.push_back(text);
    return;
  }
  cut(splitters_.front(), text, words);
  for (size_t i = 1; i < splitters_.size(); ++i) {
    const std::vector<std::string_view> coarse = std::move(words);
    words.clear();
    for (const std::string_view word : coarse) cut(splitters_[i], word, words);
  }
}

void PreTokenizer::cut(const Splitter& splitter, std::string_view text,
                       std::vector<std::string_view>& words) {
  if (splitter.word_end != nullptr) {
    for (size_t at = 0; at < text.size();) {
      const size_t end = splitter.word_end(text, at);
      words.push_back(text.substr(at, end - at));
      at = end;
    }
    return;
  }
  const auto keep = [&](size_t begin, size_t end, bool dropped) {
    if (begin < end && !dropped) words.push_back(text.substr(begin, end - begin));
  };
  size_t done = 0;
  for (const Pattern::Match& match : splitter.pattern->matches(text)) {
    keep(done, match.begin, splitter.drop_gaps);
    keep(match.begin, match.end, splitter.drop_matches);
    done = match.end;
  }
  keep(done, text.size(), splitter.drop_gaps);
}

}  // namespace dofla
