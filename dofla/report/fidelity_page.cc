#include "dofla/report/fidelity_page.h"

#include <algorithm>

#include <fmt/format.h>

#include "dofla/core/bytes.h"
#include "dofla/report/fidelity_charts.h"
#include "dofla/report/fidelity_passages.h"
#include "dofla/report/fidelity_tables.h"
#include "dofla/report/page_frame.h"
#include "dofla/report/text.h"

namespace dofla {
namespace {

std::string figure(const std::string& chart, const std::string& caption,
                   const std::string& numbers = "") {
  std::string html = fmt::format("<figure>\n{}<figcaption>{}</figcaption>\n", chart, caption);
  if (!numbers.empty()) html += "<details><summary>Numbers</summary>\n" + numbers + "</details>\n";
  return html + "</figure>\n";
}

std::string section_of(const char* title, const std::string& inside) {
  return fmt::format("<section>\n<h2>{}</h2>\n{}</section>\n", title, inside);
}

std::string figures_of(const std::string& inside) {
  return "<div class=\"figures\">\n" + inside + "</div>\n";
}

// Verdict

std::string finding_item(const Finding& finding) {
  return fmt::format("<li class=\"{}\"><b><bdi>{}</bdi></b> <bdi>{}</bdi></li>\n",
                     finding.grade ? name(*finding.grade) : "none", escape_html(finding.about),
                     escape_html(finding.words));
}

std::string card(const StudentFidelity& student, const std::string& short_name) {
  std::string items;
  for (const Finding& finding : student.verdict.findings) items += finding_item(finding);
  return fmt::format(
      "<article class=\"card {0}\">\n<p class=\"badge\">{0}</p>\n<h3><bdi>{1}</bdi></h3>\n"
      "<p class=\"kind\">{2} · {3} a sequence{4}</p>\n<p class=\"headline\">It "
      "<bdi>{5}</bdi>.</p>\n<ul class=\"findings\">\n{6}</ul>\n</article>\n",
      name(student.verdict.grade), escape_html(short_name),
      student.is_softmax() ? "softmax attention, a control" : student.kind,
      with_bytes_unit(student.cost.context_bytes),
      student.cost.grows ? " of the context’s length" : "", escape_html(student.verdict.headline),
      items);
}

std::string thresholds_line() {
  std::string html =
      "<p class=\"note\">A text’s grade, from the mean KL with two standard errors, "
      "its 99th percentile and the share of tokens with the same likeliest token: ";
  for (const TextThreshold& t : kTextThresholds)
    html += fmt::format("<b class=\"{0}\">{0}</b> up to {1:g}, {2:g} and from {3:g} %; ",
                        name(t.grade), t.kl, t.kl_99, 100 * t.same_top);
  return html + "<b class=\"far\">far</b> beyond.</p>\n";
}

std::string verdict_section(const FidelityReport& report) {
  const std::vector<std::string> names = short_names(report);
  std::string cards;
  for (size_t s = 0; s < report.students.size(); ++s) cards += card(report.students[s], names[s]);
  return section_of("Can it replace its teacher?",
                    "<div class=\"cards\">\n" + cards + "</div>\n" + thresholds_line());
}

// How far

// What a logarithm leaves out.
std::string without_place(const FidelityReport& report) {
  const bool any = std::ranges::any_of(
      report.students, [](const StudentFidelity& student) { return student.all.kl_max == 0; });
  return any ? " A student that is its teacher has no curve." : "";
}

std::string divergence_section(const FidelityReport& report) {
  const std::string means =
      figure(render_kl_overview(report),
             "Mean divergence on every text, with two standard errors by bootstrap over windows. "
             "In-domain text flatters.",
             table_html(losses_table(report)) + table_html(divergence_table(report)));
  const std::string tail =
      figure(render_kl_percentiles(report),
             "The tail: a mean hides what happens once in a hundred or a thousand tokens." +
                 without_place(report),
             table_html(agreement_table(report)));
  const std::string calibration =
      figure(render_reliability(report),
             "Calibration: of the predictions with some probability, the share that was right. "
             "On the faint diagonal a model is as sure as it is right.");
  // The chart of means is low: beside another one it would leave half a page empty.
  return section_of("How far is it?", figures_of("<div class=\"stack\">\n" + means + tail +
                                                 "</div>\n" + calibration));
}

// Where it is lost

// One bar a class, students side by side, as long as their divergence.
std::string slice_bars(const FidelityReport& report, std::vector<Slice> WhereLost::*slices) {
  const std::vector<std::string> names = short_names(report);
  double most = 0;
  for (const StudentFidelity& student : report.students)
    for (const Slice& slice : student.where.*slices) most = std::max(most, slice.kl);
  std::string html = "<dl class=\"slices\">\n";
  const std::vector<Slice>& first = report.students.front().where.*slices;
  for (size_t i = 0; i < first.size(); ++i) {
    html += fmt::format("<dt>{} <small>{} tokens</small></dt>\n", escape_html(first[i].name),
                        format_count(first[i].tokens));
    for (size_t s = 0; s < report.students.size(); ++s) {
      const Slice& slice = (report.students[s].where.*slices).at(i);
      html += fmt::format(
          "<dd title=\"{}\"><span class=\"bar-{}\" style=\"width:{:.1f}%\"></span>{} <small>{:.0f} "
          "% of all</small></dd>\n",
          escape_html(names[s]), s % 6, most > 0 ? 62 * slice.kl / most : 0,
          format_number(slice.kl, 2), 100 * slice.share);
    }
  }
  return html + "</dl>\n" + (names.size() > 1 ? students_legend(report) : "");
}

std::string where_section(const FidelityReport& report) {
  const std::vector<std::string> names = short_names(report);
  const auto numbers = [&](std::vector<Slice> WhereLost::*slices, const char* what) {
    return table_html(slices_table(report, slices, "", what));
  };
  std::string figures =
      figure(slice_bars(report, &WhereLost::by_distance),
             "Divergence (nats a token) by how long ago the same token stood in the window: what a "
             "student must recall, and what is new.",
             numbers(&WhereLost::by_distance, "token")) +
      figure(slice_bars(report, &WhereLost::by_frequency),
             "By how frequent the token is in these texts.",
             numbers(&WhereLost::by_frequency, "token")) +
      figure(render_kl_by_position(report),
             "By the position in the window. A student whose memory is too small loses more and "
             "more." +
                 without_place(report),
             numbers(&WhereLost::by_position, "position")) +
      figure(render_attention_errors(report),
             "By layer: what its attention gives against softmax attention over the same queries, "
             "keys and values.");
  for (size_t s = 0; s < report.students.size(); ++s)
    if (!report.students[s].is_softmax())
      figures += figure(render_head_errors(report.students[s], s),
                        fmt::format("By head: <bdi>{}</bdi>.", escape_html(names[s])));
  return section_of("Where is it lost?", figures_of(figures));
}

std::string titled(const ResultTable& table) {
  if (table.rows.empty()) return "";
  return "<figure class=\"wide\">\n" + table_html(table) + "<figcaption>" +
         escape_html(table.title) + ".</figcaption>\n</figure>\n";
}

std::string abilities_section(const FidelityReport& report) {
  std::string html = titled(recall_table(report)) + titled(answers_table(report));
  for (const std::string& what : report.left_out)
    html += "<p class=\"note\">Left out: <bdi>" + escape_html(what) + "</bdi></p>\n";
  return html.empty() ? "" : section_of("What does it still know?", html);
}

std::string controls_section(const FidelityReport& report) {
  const ResultTable table = controls_table(report);
  if (table.rows.empty() && table.notes.empty() && report.yardsticks.empty()) return "";
  std::string html = titled(table) + titled(yardsticks_table(report));
  for (const std::string& note : table.notes)
    html += "<p class=\"note\"><bdi>" + escape_html(note) + "</bdi></p>\n";
  return section_of("How do simpler baselines compare?", html);
}

std::string cost_section(const FidelityReport& report) {
  return section_of("What does it cost?",
                    figures_of(figure(render_memory(report), "Memory of one sequence.")) +
                        table_html(cost_table(report)));
}

}  // namespace

std::string render_fidelity_page(const FidelityReport& report, const FidelityAbout& about) {
  std::string body = verdict_section(report) + divergence_section(report) + where_section(report) +
                     abilities_section(report) + controls_section(report) + cost_section(report);
  const std::string passages = passages_html(report);
  if (!passages.empty()) body += section_of("The worst passages", passages);
  return frame_page({.title = "Students of " + last_part(report.teacher),
                     .about = fmt::format("teacher {}; windows of {} tokens; losses and KL in nats "
                                          "a token",
                                          report.teacher, report.window_tokens),
                     .command = about.command,
                     .version = about.version},
                    body);
}

std::string fidelity_markdown(const FidelityReport& report, const FidelityAbout& about) {
  TablesPage page = {.title = "Students of " + last_part(report.teacher),
                     .about = fmt::format("Windows of {} tokens; losses and KL in nats a token.",
                                          report.window_tokens),
                     .facts = {{"command", about.command}},
                     .tables = {verdict_table(report), losses_table(report),
                                divergence_table(report), agreement_table(report),
                                slices_table(report, &WhereLost::by_distance,
                                             "By the distance to the same token before", "token"),
                                slices_table(report, &WhereLost::by_frequency,
                                             "By the frequency of the token", "token"),
                                slices_table(report, &WhereLost::by_position,
                                             "By the position in the window", "position")},
                     .version = about.version};
  for (const std::string& what : report.left_out) page.facts.emplace_back("left out", what);
  for (const ResultTable& table : {recall_table(report), answers_table(report),
                                   controls_table(report), yardsticks_table(report)})
    if (!table.rows.empty()) page.tables.push_back(table);
  page.tables.push_back(cost_table(report));
  return to_markdown(page);
}

}  // namespace dofla
