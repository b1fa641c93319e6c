#include "dofla/data/tasks/records.h"

#include <algorithm>

#include "dofla/core/error.h"
#include "dofla/data/utf8.h"

namespace dofla {
namespace {

constexpr size_t kLargestFile = size_t{256} << 20;
constexpr std::string_view kWhiteSpace = " \t\n\r\v\f";

std::string place(const fs::path& file, int64_t line) {
  return fmt::format("{}:{}", file.string(), line);
}

// Python's "universal newlines": \r\n and \r become \n.
void unify_line_ends(std::string& text) {
  size_t to = 0;
  for (size_t at = 0; at < text.size(); ++at) {
    const bool before_newline = at + 1 < text.size() && text[at + 1] == '\n';
    if (text[at] == '\r' && before_newline) continue;
    text[to++] = text[at] == '\r' ? '\n' : text[at];
  }
  text.resize(to);
}

// Walks through the text of a CSV file once.
class CsvParser {
 public:
  CsvParser(const fs::path& file, std::string_view text) : file_(file), text_(text) {}

  std::vector<CsvRow> rows() {
    std::vector<CsvRow> all;
    while (at_ < text_.size()) {
      CsvRow row = {{}, place(file_, line_)};
      do row.fields.push_back(field());
      while (take(','));
      take('\n');  // or the end of the file
      const bool blank = row.fields.size() == 1 && is_blank(row.fields[0]);
      if (!blank) all.push_back(std::move(row));
    }
    return all;
  }

 private:
  bool take(char wanted) {
    if (at_ == text_.size() || text_[at_] != wanted) return false;
    if (wanted == '\n') ++line_;
    ++at_;
    return true;
  }

  std::string field() {
    if (take('"')) return quoted();
    const size_t begin = at_;
    at_ = std::min(text_.find_first_of(",\n", at_), text_.size());
    return std::string(text_.substr(begin, at_ - begin));
  }

  std::string quoted() {
    const int64_t opened = line_;
    std::string value;
    while (at_ < text_.size()) {
      const char next = text_[at_];
      take(next);
      if (next != '"' || take('"')) {
        value += next;
        continue;
      }
      if (at_ < text_.size() && text_[at_] != ',' && text_[at_] != '\n')
        fail("{}: text after the quote that closes a field; a quote inside one is written twice",
             place(file_, line_));
      return value;
    }
    fail("{}: a quote is opened here and never closed", place(file_, opened));
  }

  const fs::path& file_;
  std::string_view text_;
  size_t at_ = 0;
  int64_t line_ = 1;
};

}  // namespace

bool is_blank(std::string_view text) {
  return text.find_first_not_of(kWhiteSpace) == text.npos;
}

std::string_view trimmed(std::string_view text) {
  const size_t begin = text.find_first_not_of(kWhiteSpace);
  if (begin == text.npos) return {};
  return text.substr(begin, text.find_last_not_of(kWhiteSpace) - begin + 1);
}

std::string read_task_text(const fs::path& file) {
  std::string text = read_text(file, kLargestFile);
  if (text.starts_with("\xef\xbb\xbf")) text.erase(0, 3);
  unify_line_ends(text);
  if (const size_t bad = find_invalid_utf8(text); bad != text.npos)
    fail("{}: not valid UTF-8: byte 0x{:02x}",
         place(file, 1 + std::count(text.data(), text.data() + bad, '\n')),
         static_cast<unsigned char>(text[bad]));
  return text;
}

std::vector<TextLine> read_lines(const fs::path& file) {
  const std::string text = read_task_text(file);
  std::vector<TextLine> lines;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    const auto number = static_cast<int64_t>(lines.size()) + 1;
    lines.push_back({text.substr(begin, end - begin), place(file, number)});
    begin = end + 1;
  }
  return lines;
}

const std::string& JsonRecord::text(const char* key) const {
  const auto found = object.find(key);
  if (found == object.end() || !found->is_string())
    fail("{}: expected a text \"{}\", found {}", where, key,
         found == object.end() ? "none" : excerpt(*found));
  const auto& value = found->get_ref<const std::string&>();
  if (is_blank(value)) fail("{}: \"{}\" is empty", where, key);
  return value;
}

JsonRecord JsonRecord::member(const char* key) const {
  const auto found = object.find(key);
  if (found == object.end() || !found->is_object())
    fail("{}: expected an object \"{}\", found {}", where, key,
         found == object.end() ? "none" : excerpt(*found));
  return {*found, where};
}

std::vector<JsonRecord> read_json_lines(const fs::path& file) {
  std::vector<JsonRecord> records;
  for (TextLine& line : read_lines(file)) {
    if (is_blank(line.text)) continue;
    Json object = parse_json(line.text, line.where);
    if (!object.is_object())
      fail("{}: expected a JSON object, found {}", line.where, excerpt(object));
    records.push_back({std::move(object), std::move(line.where)});
  }
  return records;
}

std::vector<CsvRow> read_csv(const fs::path& file) {
  const std::string text = read_task_text(file);
  return CsvParser(file, text).rows();
}

}  // namespace dofla
