// A table of results, as Markdown or as part of a page.
#pragma once

#include <string>
#include <utility>
#include <vector>

namespace dofla {

struct TableCell {
  std::string text;
  std::string aside = {};  // behind the text, smaller: a spread, a share
  bool bold = false;
};

struct TableColumn {
  std::string name;
  std::string group;  // neighbours of the same group stand under one heading; may be empty
};

struct TableRow {
  std::vector<std::string> labels;  // as many as the table has label_names
  std::vector<TableCell> cells;     // as many as it has columns, or fewer
};

struct ResultTable {
  std::string title;
  std::vector<std::string> label_names = {};
  std::vector<TableColumn> columns = {};
  std::vector<TableRow> rows = {};
  std::vector<std::string> notes = {};  // a paragraph each
};

// Markdown has one line of headings: there the group stands before the name.
std::string to_markdown(const ResultTable& table);
std::string to_html(const ResultTable& table);     // a <section>
std::string table_html(const ResultTable& table);  // without title and notes

struct TablesPage {
  std::string title;
  std::string about;                                       // one line below the title
  std::vector<std::pair<std::string, std::string>> facts;  // name, value
  std::vector<ResultTable> tables;
  std::string version;
};

std::string to_markdown(const TablesPage& page);
std::string render_tables_page(const TablesPage& page);

}  // namespace dofla
