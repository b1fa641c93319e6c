#include "dofla/report/page_frame.h"

#include <string_view>

#include <fmt/format.h>

#include "dofla/report/page_assets.h"
#include "dofla/report/text.h"

namespace dofla {
namespace {

// Nothing may be fetched, even if a hostile name found a way through.
constexpr std::string_view kHead = R"(<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<meta http-equiv="Content-Security-Policy"
 content="default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:">
<link rel="icon" href="data:,">
)";

}  // namespace

std::string frame_page(const PageFrame& frame, const std::string& body) {
  const std::string title = frame.title.empty() ? "dofla report" : escape_html(frame.title);
  std::string html(kHead);
  html += fmt::format("<title>{}</title>\n<style>\n{}</style>\n</head>\n<body>\n<main>\n", title,
                      kPageStyle);
  html += fmt::format("<header>\n<h1><bdi>{}</bdi></h1>\n", title);
  if (!frame.about.empty())
    html += fmt::format("<p class=\"model\"><bdi>{}</bdi></p>\n", escape_html(frame.about));
  html += "</header>\n" + body + "<footer>\n";
  if (!frame.command.empty())
    html += fmt::format("<pre><code><bdi>{}</bdi></code></pre>\n", escape_html(frame.command));
  html += fmt::format(
      "<p>Made by dofla <bdi>{}</bdi>. Layers and heads are counted from 1.</p>\n</footer>\n",
      escape_html(frame.version));
  html += fmt::format(
      "</main>\n<div id=\"tip\" aria-hidden=\"true\" hidden></div>\n<script>\n{}</script>\n",
      kPageScript);
  return html + "</body>\n</html>\n";
}

std::string name_value_table(const std::vector<std::pair<std::string, std::string>>& rows) {
  if (rows.empty()) return "";
  std::string html = "<div class=\"scroll\" tabindex=\"0\"><table class=\"rows\"><tbody>\n";
  for (const auto& [name, value] : rows)
    html += fmt::format("<tr><th scope=\"row\"><bdi>{}</bdi></th><td><bdi>{}</bdi></td></tr>\n",
                        escape_html(name), escape_html(value));
  return html + "</tbody></table></div>\n";
}

}  // namespace dofla
