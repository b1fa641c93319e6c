#include "dofla/core/json.h"

#include <utility>
#include <vector>

#include "dofla/core/error.h"

namespace dofla {
namespace {

constexpr size_t kDeepest = 64;
constexpr size_t kLongestExcerpt = 160;
// The value takes up to twenty times the memory of its text. Tokenizers, the largest JSON files
// of a model folder, have some tens of megabytes.
constexpr size_t kLargestFile = size_t{1} << 28;

std::string cut(std::string text) {
  if (text.size() > kLongestExcerpt) text.replace(kLongestExcerpt, text.npos, "...");
  return text;
}

// Builds the value event by event. The library's own builder would take any depth and keep the
// last of two equal keys; its callback scans an object again for every member, which a hostile
// file turns into hours.
class Builder : public nlohmann::json_sax<Json> {
 public:
  explicit Builder(std::string_view where) : where_(where) {}
  Json take() { return std::move(root_); }

  bool null() override { return add(nullptr); }
  bool boolean(bool value) override { return add(value); }
  bool number_integer(int64_t value) override { return add(value); }
  bool number_unsigned(uint64_t value) override { return add(value); }
  bool number_float(double value, const std::string&) override { return add(value); }
  bool string(std::string& value) override { return add(std::move(value)); }
  bool binary(Json::binary_t&) override { return false; }  // not in JSON

  bool start_object(size_t) override { return open(Json::object()); }
  bool start_array(size_t) override { return open(Json::array()); }
  bool end_object() override { return close(); }
  bool end_array() override { return close(); }

  bool key(std::string& name) override {
    const auto [member, fresh] = open_.back()->emplace(name, nullptr);
    if (!fresh) fail("{}: not valid JSON: key {} given twice", where_, excerpt(name));
    member_ = &*member;
    return true;
  }

  bool parse_error(size_t, const std::string&, const Json::exception& error) override {
    // The library's text starts with an id in brackets that means nothing to a user.
    std::string_view reason = error.what();
    if (const size_t end = reason.find("] "); end != reason.npos) reason.remove_prefix(end + 2);
    fail("{}: not valid JSON: {}", where_, printable(reason));
  }

 private:
  Json& place(Json value) {
    if (open_.empty()) return root_ = std::move(value);
    if (open_.back()->is_object()) return *member_ = std::move(value);
    return open_.back()->emplace_back(std::move(value));
  }

  bool add(Json value) {
    place(std::move(value));
    return true;
  }

  bool open(Json empty) {
    if (open_.size() == kDeepest) fail("{}: JSON nested deeper than {}", where_, kDeepest);
    open_.push_back(&place(std::move(empty)));
    return true;
  }

  bool close() {
    open_.pop_back();
    return true;
  }

  std::string_view where_;
  Json root_;
  std::vector<Json*> open_;  // the arrays and objects around the next value, outermost first
  Json* member_ = nullptr;   // where the next value goes if it belongs to an object
};

}  // namespace

Json parse_json(std::string_view text, std::string_view where) {
  // The library takes a NUL for the end and ignores what follows.
  if (text.find('\0') != text.npos) fail("{}: not valid JSON: it holds a NUL byte", where);
  Builder builder(where);
  Json::sax_parse(text, &builder);
  return builder.take();
}

Json load_json(const fs::path& path, Input input) {
  return parse_json(read_text(path, kLargestFile, input), path.string());
}

std::string excerpt(const Json& value) {
  return cut(value.dump(-1, ' ', true, Json::error_handler_t::replace));
}

std::string printable(std::string_view text) {
  std::string out;
  for (const char c : text.substr(0, kLongestExcerpt + 1)) out += c >= ' ' && c <= '~' ? c : '?';
  return cut(std::move(out));
}

}  // namespace dofla
