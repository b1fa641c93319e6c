#include "dofla/data/corpus.h"

#include <algorithm>
#include <cstring>

#include "dofla/core/error.h"
#include "dofla/core/json.h"
#include "dofla/data/utf8.h"

namespace dofla {
namespace {

enum class Kind { kText, kJsonLines };

Kind kind_of(const fs::path& path) {
  fs::path name = path.filename();
  if (name.extension() == ".zst" || name.extension() == ".gz") name = name.stem();
  if (name.extension() == ".txt") return Kind::kText;
  if (name.extension() == ".jsonl") return Kind::kJsonLines;
  fail(
      "{}: not a kind of text that is read here: expected .txt or .jsonl, optionally followed by "
      ".zst or .gz",
      path.string());
}

bool is_blank(std::string_view line) {
  return line.find_first_not_of(" \t\r") == std::string_view::npos;
}

}  // namespace

DocumentReader::DocumentReader(std::vector<fs::path> files, size_t longest)
    : files_(std::move(files)), longest_(longest), buffer_(size_t{256} << 10) {
  require(!files_.empty(), "DocumentReader: no file given");
  for (const fs::path& file : files_) kind_of(file);
}

std::optional<std::string> DocumentReader::next() {
  while (true) {
    if (!bytes_) {
      if (next_file_ == files_.size()) return std::nullopt;
      open_next_file();
    }
    if (std::optional<std::string> document = next_in_file()) {
      ++documents_;
      return document;
    }
    if (documents_ == 0) fail("{}: empty: no document in it", path_.string());
    bytes_ = nullptr;
  }
}

void DocumentReader::open_next_file() {
  path_ = files_[next_file_++];
  bytes_ = open_bytes(path_);
  begin_ = end_ = 0;
  line_ = documents_ = 0;
}

std::string DocumentReader::here() const {
  return fmt::format("{}:{}", path_.string(), line_);
}

bool DocumentReader::read_line(std::string& line) {
  line.clear();
  ++line_;
  bool found = false;
  while (true) {
    if (begin_ == end_) {
      begin_ = 0;
      end_ = bytes_(buffer_);
      if (end_ == 0) return found;
    }
    found = true;
    const char* from = buffer_.data() + begin_;
    const size_t size = end_ - begin_;
    const void* newline = std::memchr(from, '\n', size);
    const size_t taken =
        newline != nullptr ? static_cast<size_t>(static_cast<const char*>(newline) - from) : size;
    if (line.size() + taken > longest_)
      fail("{}: line longer than {} bytes; split the document", here(), longest_);
    line.append(from, taken);
    begin_ += taken;
    if (newline != nullptr) {
      ++begin_;
      return true;
    }
  }
}

std::optional<std::string> DocumentReader::next_in_file() {
  if (kind_of(path_) == Kind::kText) return whole_text();
  std::string line;
  while (read_line(line)) {
    if (is_blank(line)) continue;
    Json record = parse_json(line, here());
    const auto text = record.is_object() ? record.find("text") : record.end();
    if (!record.is_object() || text == record.end() || !text->is_string())
      fail("{}: expected an object with a \"text\" string, as in {{\"text\": \"…\"}}", here());
    if (auto& document = text->get_ref<std::string&>(); !document.empty())
      return std::move(document);
  }
  return std::nullopt;
}

std::optional<std::string> DocumentReader::whole_text() {
  std::string text;
  while (const size_t size = bytes_(buffer_)) {
    if (text.size() + size > longest_)
      fail("{}: longer than the {} bytes that a document may have; split it, or write .jsonl",
           path_.string(), longest_);
    text.append(buffer_.data(), size);
  }
  if (const size_t bad = find_invalid_utf8(text); bad != std::string_view::npos) {
    line_ = 1 + std::count(text.begin(), text.begin() + static_cast<std::ptrdiff_t>(bad), '\n');
    fail("{}: not valid UTF-8: byte 0x{:02x} at offset {} of the file", here(),
         static_cast<unsigned char>(text[bad]), bad);
  }
  if (text.empty()) return std::nullopt;
  return text;
}

}  // namespace dofla
