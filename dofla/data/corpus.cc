#include "dofla/data/corpus.h"

#include <algorithm>
#include <cstring>
#include <stdexcept>

#include "dofla/core/error.h"
#include "dofla/core/json.h"
#include "dofla/data/utf8.h"

namespace dofla {
namespace {

bool is_blank_line(std::string_view line) {
  return line.find_first_not_of(" \t\r") == std::string_view::npos;
}

// Throws Error "where: …" unless the line is an object with a text.
std::string text_of(std::string_view line, const std::string& where) {
  Json record = parse_json(line, where);
  const auto text = record.is_object() ? record.find("text") : record.end();
  if (!record.is_object() || text == record.end() || !text->is_string())
    fail("{}: expected an object with a \"text\" string, as in {{\"text\": \"…\"}}", where);
  return std::move(text->get_ref<std::string&>());
}

std::string not_utf8(std::string_view text, size_t at) {
  return fmt::format("not valid UTF-8: byte 0x{:02x}", static_cast<unsigned char>(text[at]));
}

}  // namespace

DocumentReader::DocumentReader(TextFiles files, const DocumentOptions& options)
    : files_(std::move(files)), options_(options), buffer_(size_t{256} << 10) {}

std::optional<std::string> DocumentReader::next() {
  while (true) {
    if (!bytes_) {
      if (next_file_ == files_.count()) return std::nullopt;
      open_next_file();
    }
    if (std::optional<std::string> document = next_in_file()) {
      ++documents_;
      return document;
    }
    if (documents_ == 0) fail("{}: empty: no document in it", files_.name(file_));
    bytes_ = nullptr;
  }
}

void DocumentReader::open_next_file() {
  file_ = next_file_++;
  bytes_ = files_.open(file_);
  begin_ = end_ = 0;
  line_ = documents_ = 0;
}

std::string DocumentReader::here() const {
  return fmt::format("{}:{}", files_.name(file_), line_);
}

void DocumentReader::bad_line(const std::string& defect) {
  if (!options_.skip_bad_lines) throw Error(defect);
  if (skipped_.count++ == 0) skipped_.first = defect;
}

bool DocumentReader::read_line(std::string& line) {
  line.clear();
  ++line_;
  bool found = false, too_long = false;
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
    if (!too_long && line.size() + taken > options_.longest_line) {
      bad_line(fmt::format("{}: line longer than {} bytes; split the document", here(),
                           options_.longest_line));
      too_long = true;
      line = {};
    }
    if (!too_long) line.append(from, taken);
    begin_ += taken;
    if (newline != nullptr) {
      ++begin_;
      return true;
    }
  }
}

std::optional<std::string> DocumentReader::next_in_file() {
  if (files_.kind(file_) == TextKind::kText) return whole_text();
  std::string line;
  while (read_line(line)) {
    if (is_blank_line(line)) continue;
    try {
      if (std::string document = text_of(line, here()); !document.empty()) return document;
    } catch (const Error& error) {
      bad_line(error.what());
    }
  }
  return std::nullopt;
}

std::optional<std::string> DocumentReader::whole_text() {
  std::string text;
  while (const size_t size = bytes_(buffer_)) {
    if (text.size() + size > options_.longest_text)
      fail("{}: longer than the {} bytes that a document may have; split it, or write .jsonl",
           files_.name(file_), options_.longest_text);
    text.append(buffer_.data(), size);
  }
  if (const size_t bad = find_invalid_utf8(text); bad != std::string_view::npos) {
    line_ = 1 + std::count(text.begin(), text.begin() + static_cast<std::ptrdiff_t>(bad), '\n');
    if (!options_.skip_bad_lines)
      fail("{}: {} at offset {} of the file", here(), not_utf8(text, bad), bad);
    drop_bad_lines(text);
  }
  if (text.empty()) return std::nullopt;
  return text;
}

void DocumentReader::drop_bad_lines(std::string& text) {
  line_ = 0;
  size_t kept = 0;
  for (size_t begin = 0; begin < text.size();) {
    ++line_;
    const size_t end = std::min(text.find('\n', begin), text.size() - 1) + 1;
    const std::string_view line(text.data() + begin, end - begin);
    if (const size_t bad = find_invalid_utf8(line); bad != std::string_view::npos) {
      bad_line(fmt::format("{}: {}", here(), not_utf8(line, bad)));
    } else {
      std::memmove(text.data() + kept, line.data(), line.size());
      kept += line.size();
    }
    begin = end;
  }
  text.resize(kept);
}

}  // namespace dofla
