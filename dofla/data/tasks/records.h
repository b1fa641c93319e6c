// The formats that task files come in. Every record knows its place, "file:line", for messages.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "dofla/core/json.h"

namespace dofla {

// A whole text file of at most 256 MiB, as every format below is read: UTF-8 (Error "file:line: …"
// otherwise), without a byte-order mark, lines ended by \n whatever the file ends them by.
std::string read_task_text(const fs::path& file);

struct TextLine {
  std::string text;
  std::string where;
};
std::vector<TextLine> read_lines(const fs::path& file);  // blank ones too

// JSON lines: one object a line; blank lines are passed over.
struct JsonRecord {
  Json object;
  std::string where;

  // The string or object of that name. Throws Error unless it is there, and the string not blank.
  const std::string& text(const char* key) const;
  JsonRecord member(const char* key) const;
};
std::vector<JsonRecord> read_json_lines(const fs::path& file);

// Comma-separated values. A field in quotes may hold commas, line ends and doubled quotes.
struct CsvRow {
  std::vector<std::string> fields;
  std::string where;  // its first line
};
std::vector<CsvRow> read_csv(const fs::path& file);

bool is_blank(std::string_view text);
std::string_view trimmed(std::string_view text);  // without white space at either end

}  // namespace dofla
