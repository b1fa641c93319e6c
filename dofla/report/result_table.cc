#include "dofla/report/result_table.h"

#include <algorithm>

#include <fmt/format.h>

#include "dofla/report/page_frame.h"
#include "dofla/report/text.h"

namespace dofla {
namespace {

// Text that stays what it is in a line of Markdown.
std::string escape_markdown(std::string_view text) {
  std::string out;
  for (const char c : text) {
    if (std::string_view("\\`*_[]<>|#").find(c) != std::string_view::npos) out += '\\';
    out += c == '\n' || c == '\r' ? ' ' : c;
  }
  return out;
}

std::string markdown_row(const std::vector<std::string>& cells) {
  std::string line = "|";
  for (const std::string& cell : cells) line += (cell.empty() ? "" : " " + cell) + " |";
  return line + "\n";
}

std::string markdown_cell(const TableCell& cell) {
  std::string text = escape_markdown(cell.text);
  if (cell.bold) text = "**" + text + "**";
  return cell.aside.empty() ? text : text + " " + escape_markdown(cell.aside);
}

std::string html_cell(const TableCell& cell) {
  std::string text = escape_html(cell.text);
  if (cell.bold) text = "<b>" + text + "</b>";
  if (!cell.aside.empty()) text += "<small> " + escape_html(cell.aside) + "</small>";
  return text;
}

// The first column of a group, other than that of the table, is set apart by a line.
bool begins_group(const ResultTable& table, size_t column) {
  return column == 0 || table.columns[column].group != table.columns[column - 1].group;
}
const char* column_class(const ResultTable& table, size_t column) {
  return begins_group(table, column) ? " class=\"begins\"" : "";
}

std::string group_headings(const ResultTable& table) {
  std::string html = fmt::format("<tr><td colspan=\"{}\"></td>", table.label_names.size());
  for (size_t c = 0; c < table.columns.size();) {
    size_t end = c + 1;
    while (end < table.columns.size() && !begins_group(table, end)) ++end;
    html += fmt::format("<th scope=\"colgroup\" class=\"begins\" colspan=\"{}\">{}</th>", end - c,
                        escape_html(table.columns[c].group));
    c = end;
  }
  return html + "</tr>\n";
}

}  // namespace

std::string to_markdown(const ResultTable& table) {
  std::string text = fmt::format("## {}\n\n", escape_markdown(table.title));
  std::vector<std::string> names, rule;
  for (const std::string& label : table.label_names) {
    names.push_back(escape_markdown(label));
    rule.emplace_back("---");
  }
  for (const TableColumn& column : table.columns) {
    const std::string group = column.group.empty() ? "" : escape_markdown(column.group) + ": ";
    names.push_back(group + escape_markdown(column.name));
    rule.emplace_back("---:");
  }
  text += markdown_row(names) + markdown_row(rule);
  for (const TableRow& row : table.rows) {
    std::vector<std::string> cells;
    for (const std::string& label : row.labels) cells.push_back(escape_markdown(label));
    for (const TableCell& cell : row.cells) cells.push_back(markdown_cell(cell));
    cells.resize(names.size());
    text += markdown_row(cells);
  }
  for (const std::string& note : table.notes) text += fmt::format("\n{}\n", escape_markdown(note));
  return text;
}

std::string table_html(const ResultTable& table) {
  std::string html = "<div class=\"scroll\" tabindex=\"0\"><table class=\"results\">\n<thead>\n";
  const bool grouped = std::any_of(table.columns.begin(), table.columns.end(),
                                   [](const TableColumn& c) { return !c.group.empty(); });
  if (grouped) html += group_headings(table);
  html += "<tr>";
  for (const std::string& label : table.label_names)
    html += "<th scope=\"col\" class=\"label\">" + escape_html(label) + "</th>";
  for (size_t c = 0; c < table.columns.size(); ++c)
    html += fmt::format("<th scope=\"col\"{}>{}</th>", column_class(table, c),
                        escape_html(table.columns[c].name));
  html += "</tr>\n</thead>\n<tbody>\n";
  for (const TableRow& row : table.rows) {
    html += "<tr>";
    for (const std::string& label : row.labels)
      html += "<th scope=\"row\" class=\"label\">" + escape_html(label) + "</th>";
    for (size_t c = 0; c < table.columns.size(); ++c)
      html += fmt::format("<td{}>{}</td>", column_class(table, c),
                          c < row.cells.size() ? html_cell(row.cells[c]) : "");
    html += "</tr>\n";
  }
  return html + "</tbody></table></div>\n";
}

std::string to_html(const ResultTable& table) {
  std::string html =
      fmt::format("<section>\n<h2>{}</h2>\n", escape_html(table.title)) + table_html(table);
  for (const std::string& note : table.notes)
    html += "<p class=\"note\">" + escape_html(note) + "</p>\n";
  return html + "</section>\n";
}

std::string to_markdown(const TablesPage& page) {
  std::string text =
      fmt::format("# {}\n\n{}\n", escape_markdown(page.title), escape_markdown(page.about));
  if (!page.facts.empty())
    text += fmt::format("\n{}|---|---|\n", markdown_row({"setting", "value"}));
  for (const auto& [name, value] : page.facts)
    text += markdown_row({escape_markdown(name), escape_markdown(value)});
  for (const ResultTable& table : page.tables) text += fmt::format("\n{}", to_markdown(table));
  return text + "\nMade by dofla " + escape_markdown(page.version) + ".\n";
}

std::string render_tables_page(const TablesPage& page) {
  std::string body;
  for (const ResultTable& table : page.tables) body += to_html(table);
  if (!page.facts.empty())
    body += "<section>\n<h2>Settings</h2>\n" + name_value_table(page.facts) + "</section>\n";
  return frame_page({page.title, page.about, "", page.version}, body);
}

}  // namespace dofla
