#include "dofla/report/fidelity_passages.h"

#include <fmt/format.h>

#include "dofla/report/fidelity_charts.h"
#include "dofla/report/text.h"

namespace dofla {
namespace {

constexpr size_t kOpen = 3;  // that are seen without a click

// A token whose spaces and line ends can be seen.
std::string visible(const std::string& token) {
  std::string out;
  for (const char c : token) {
    if (c == ' ')
      out += "␣";
    else if (c == '\n')
      out += "↵";
    else
      out += c;
  }
  return out.empty() ? "∅" : out;
}

std::string percent_of(double p) {
  if (p >= 0.095) return fmt::format("{:.0f} %", 100 * p);
  return p >= 0.001 ? fmt::format("{:.1f} %", 100 * p) : format_number(100 * p, 2) + " %";
}

std::string distribution(const char* who, const std::vector<LikelyToken>& tokens, double p_next) {
  std::string html =
      fmt::format("<div><h4>{} <small>{} for it</small></h4><ol>\n", who, percent_of(p_next));
  for (const LikelyToken& token : tokens)
    html +=
        fmt::format("<li><span style=\"width:{:.1f}%\"></span><code><bdi>{}</bdi></code> {}</li>\n",
                    100 * token.p, escape_html(visible(token.text)), percent_of(token.p));
  return html + "</ol></div>\n";
}

std::string passage_html(const WorstPassage& passage) {
  return fmt::format(
             "<article class=\"passage\">\n<p class=\"context\"><bdi>…{}</bdi><mark><bdi>{}</bdi>"
             "</mark></p>\n<div class=\"two\">\n",
             escape_html(passage.context), escape_html(visible(passage.next))) +
         distribution("Teacher", passage.teacher, passage.teacher_p) +
         distribution("Student", passage.student, passage.student_p) +
         fmt::format(
             "</div>\n<p class=\"where\"><bdi>{}</bdi>, window {}, token {} · KL {}</p>\n"
             "</article>\n",
             escape_html(passage.text), passage.window, passage.position,
             format_number(passage.kl, 3));
}

}  // namespace

std::string passages_html(const FidelityReport& report) {
  const std::vector<std::string> names = short_names(report);
  std::string html;
  for (size_t s = 0; s < report.students.size(); ++s) {
    const std::vector<WorstPassage>& worst = report.students[s].worst;
    if (worst.empty()) continue;
    html += fmt::format("<h3><bdi>{}</bdi></h3>\n", escape_html(names[s]));
    for (size_t i = 0; i < worst.size(); ++i) {
      if (i == kOpen)
        html += fmt::format("<details><summary>{} more</summary>\n", worst.size() - kOpen);
      html += passage_html(worst[i]);
    }
    if (worst.size() > kOpen) html += "</details>\n";
  }
  return html;
}

}  // namespace dofla
