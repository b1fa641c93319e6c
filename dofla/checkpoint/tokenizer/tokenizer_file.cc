#include "dofla/checkpoint/tokenizer/tokenizer_file.h"

#include <string>
#include <utility>
#include <vector>

#include "dofla/core/error.h"

namespace dofla {
namespace {

class Reader : public nlohmann::json_sax<Json> {
 public:
  Reader(TokenizerFile& file, std::string_view where) : file_(file), where_(where) {}

  bool null() override { return scalar(nullptr); }
  bool boolean(bool value) override { return scalar(value); }
  bool number_integer(number_integer_t value) override { return integer(value); }
  bool number_unsigned(number_unsigned_t value) override { return integer(value); }
  bool number_float(number_float_t value, const string_t&) override { return scalar(value); }
  bool binary(binary_t&) override { return false; }  // JSON text has none

  bool string(string_t& value) override {
    if (place_ == Place::kMerges) {
      if (!file_.merges.add_line(value))
        fail("{}: model: merges: {}: expected two tokens and a space between, found '{}'", where_,
             file_.merges.size(), value);
      return true;
    }
    if (place_ == Place::kMergePair) {
      pair_.push_back(std::move(value));
      return true;
    }
    return scalar(std::move(value));
  }

  bool key(string_t& value) override {
    key_ = std::move(value);
    return true;
  }

  bool start_object(size_t) override {
    if (in_model("vocab")) {
      if (std::exchange(file_.has_vocabulary, true))
        fail("{}: model: vocab is there twice", where_);
      place_ = Place::kVocabulary;
      return true;
    }
    return open(Json::object());
  }

  bool start_array(size_t) override {
    if (in_model("merges")) {
      if (std::exchange(file_.has_merges, true)) fail("{}: model: merges is there twice", where_);
      place_ = Place::kMerges;
      return true;
    }
    if (place_ == Place::kMerges) {
      place_ = Place::kMergePair;
      pair_.clear();
      return true;
    }
    return open(Json::array());
  }

  bool end_object() override {
    if (place_ == Place::kVocabulary) {
      place_ = Place::kSettings;
    } else {
      open_.pop_back();
    }
    return true;
  }

  bool end_array() override {
    if (place_ == Place::kMerges) {
      place_ = Place::kSettings;
    } else if (place_ == Place::kMergePair) {
      if (pair_.size() != 2)
        fail("{}: model: merges: {}: expected two tokens, found {}", where_, file_.merges.size(),
             pair_.size());
      file_.merges.add(pair_[0], pair_[1]);
      place_ = Place::kMerges;
    } else {
      open_.pop_back();
    }
    return true;
  }

  bool parse_error(size_t, const std::string&, const nlohmann::detail::exception&) override {
    return false;
  }

 private:
  enum class Place { kSettings, kVocabulary, kMerges, kMergePair };

  bool in_model(std::string_view name) const {
    return place_ == Place::kSettings && open_.size() == 2 && open_[1] == model_ && key_ == name;
  }

  bool integer(auto value) {
    if (place_ != Place::kVocabulary) return scalar(value);
    // Past int64 the number turns negative: out of range either way.
    file_.vocabulary.add(key_, static_cast<int64_t>(value), where_);
    return true;
  }

  bool scalar(Json value) {
    put(std::move(value));
    return true;
  }

  bool open(Json empty) {
    constexpr size_t kDeepest = 64;
    if (open_.size() == kDeepest) fail("{}: JSON nested deeper than {}", where_, kDeepest);
    const bool is_model = open_.size() == 1 && key_ == "model";
    open_.push_back(put(std::move(empty)));
    if (is_model) model_ = open_.back();
    return true;
  }

  // Puts a value into the innermost open array or object; its address stays good while it is open.
  Json* put(Json value) {
    if (place_ == Place::kVocabulary)
      fail("{}: model: vocab: token '{}': expected an id, found {}", where_, key_,
           value.type_name());
    if (place_ != Place::kSettings)
      fail("{}: model: merges: {}: expected two tokens, found {}", where_, file_.merges.size(),
           value.type_name());
    if (open_.empty()) return &(file_.settings = std::move(value));
    Json& parent = *open_.back();
    if (parent.is_object()) return &(parent[key_] = std::move(value));
    return &parent.emplace_back(std::move(value));
  }

  TokenizerFile& file_;
  std::string_view where_;
  Place place_ = Place::kSettings;
  std::vector<Json*> open_;  // outermost first
  const Json* model_ = nullptr;
  std::string key_;
  std::vector<std::string> pair_;
};

}  // namespace

TokenizerFile read_tokenizer_file(std::string_view text, std::string_view where) {
  TokenizerFile file;
  Reader reader(file, where);
  if (Json::sax_parse(text, &reader)) return file;
  parse_json(text, where);  // fails on the same text, and words the reason
  fail("{}: not valid JSON", where);
}

}  // namespace dofla
