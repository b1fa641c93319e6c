#include "dofla/report/fidelity_page.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "dofla/report/fidelity_charts.h"
#include "dofla/report/fidelity_tables.h"
#include "tests/support/sample_fidelity.h"

namespace dofla {
namespace {

using testing::HasSubstr;
using testing::Not;

TEST(FidelityPage, HasEveryPart) {
  const std::string page = render_fidelity_page(test::plain_fidelity(), {"dofla compare a b", "1"});
  for (const char* part :
       {"Students of wiki-mini", "Can it replace its teacher?", "How far is it?",
        "Where is it lost?", "What does it still know?", "How do simpler baselines compare?",
        "What does it cost?", "The worst passages", "dofla compare a b", "2 more"})
    EXPECT_THAT(page, HasSubstr(part));
}

TEST(FidelityPage, EscapesNamesAndTexts) {
  const std::string page = render_fidelity_page(test::hostile_fidelity(), {"<b>", "1"});
  EXPECT_THAT(page, Not(HasSubstr("<script>alert")));
  EXPECT_THAT(page, Not(HasSubstr("<img")));
  EXPECT_THAT(page, Not(HasSubstr("\x01")));
  EXPECT_THAT(page, Not(HasSubstr("\xff")));
  const std::string markdown = fidelity_markdown(test::hostile_fidelity(), {"<b>", "1"});
  EXPECT_THAT(markdown, Not(HasSubstr("<script>")));
}

TEST(FidelityPage, TablesHaveTheNumbersOfTheReport) {
  const FidelityReport report = test::plain_fidelity();
  const ResultTable losses = losses_table(report);
  ASSERT_EQ(losses.rows.size(), 6u);  // two students on two texts, and on both
  EXPECT_EQ(losses.rows[0].labels[1], "wiki (in domain)");
  EXPECT_EQ(losses.rows[0].cells[1].text, "3.2500");
  EXPECT_EQ(losses.rows[0].cells[3].text, "0.4400 ± 0.027");
  EXPECT_EQ(losses.rows[0].cells[4].text, "1.553");  // exp(0.44)
  const ResultTable divergence = divergence_table(report);
  EXPECT_EQ(divergence.rows[1].cells[0].text, "1.2000 ± 0.06");
  EXPECT_EQ(divergence.rows[1].cells[4].text, "10.800");
  EXPECT_EQ(agreement_table(report).rows[0].cells[0].text, "60.0 %");
  const ResultTable recall = recall_table(report);
  ASSERT_EQ(recall.rows.size(), 1u);
  EXPECT_EQ(recall.rows[0].cells[0].text, "90.0 %");
  EXPECT_EQ(recall.rows[0].cells[1].text, "40.0 %");
  EXPECT_EQ(recall.rows[0].cells[3].text, "20.0 %");
  const ResultTable controls = controls_table(report);
  EXPECT_EQ(controls.rows[0].cells[0].text, "+0.0500");
  EXPECT_EQ(controls.rows[1].labels[2], "a window of 80 keys alone");
  EXPECT_EQ(controls.rows[1].cells[0].text, "+0.0600");
  EXPECT_EQ(cost_table(report).rows.size(), 3u);
  EXPECT_EQ(yardsticks_table(report).rows.size(), 4u);
  const ResultTable slices = slices_table(report, &WhereLost::by_position, "", "position");
  EXPECT_EQ(slices.rows[1].cells[1].text, "0.4");
  EXPECT_EQ(slices.rows[1].cells[3].text, "0.008");
}

// The teacher through the same training, say: it has nothing to beat, the others have it.
TEST(FidelityPage, ASoftmaxStudentIsAControlOfTheOthers) {
  FidelityReport report = test::plain_fidelity();
  EXPECT_EQ(controls_table(report).rows.size(), 8u);  // two students on two texts, and a window
  StudentFidelity& control = report.students[1];
  control.kind = "softmax";
  control.texts[1].controls.student_loss = 3.27;
  const ResultTable controls = controls_table(report);
  ASSERT_EQ(controls.rows.size(), 6u);
  EXPECT_EQ(controls.rows[5].labels,
            (std::vector<std::string>{"out/linear", "news", "out/hybrid, softmax attention"}));
  EXPECT_EQ(controls.rows[5].cells[0].text, "+0.0200");
  const std::string page = render_fidelity_page(report, {"dofla compare a b", "1"});
  EXPECT_THAT(page, HasSubstr("softmax attention, a control"));
}

TEST(FidelityPage, MarkdownHasTheVerdict) {
  FidelityReport report = test::plain_fidelity();
  report.left_out = {"tasks: not requested"};
  const std::string text = fidelity_markdown(report, {"dofla compare", "1"});
  for (const char* part : {"## Verdict", "## Loss", "## Cost", "## Recall", "out/hybrid",
                           "| left out | tasks: not requested |"})
    EXPECT_THAT(text, HasSubstr(part));
}

// The only one needs no column for its name, and no legend.
TEST(FidelityPage, OneStudentIsNamedOnce) {
  FidelityReport report = test::plain_fidelity();
  const std::string two = render_fidelity_page(report, {"dofla compare a b", "1"});
  report.students.pop_back();
  for (const ResultTable& table : {losses_table(report), divergence_table(report),
                                   agreement_table(report), controls_table(report)}) {
    EXPECT_EQ(table.label_names.front(), "text") << table.title;
    EXPECT_EQ(table.rows.front().labels.front(), "wiki (in domain)") << table.title;
    for (const TableRow& row : table.rows)
      EXPECT_EQ(row.labels.size(), table.label_names.size()) << table.title;
  }
  EXPECT_EQ(verdict_table(report).label_names.front(), "about");
  const std::string one = render_fidelity_page(report, {"dofla compare a b", "1"});
  EXPECT_THAT(two, HasSubstr("</dl>\n<ul class=\"legend\""));
  EXPECT_THAT(one, Not(HasSubstr("</dl>\n<ul class=\"legend\"")));
}

// A control that is its teacher has no place on a logarithm, and does not flatten the others.
TEST(FidelityPage, AStudentWithoutDivergenceLeavesTheOthersTheirScale) {
  FidelityReport report = test::plain_fidelity();
  StudentFidelity copy = report.students.back();
  report.students.resize(1);
  const auto first_curve = [](const std::string& chart) {
    const size_t begin = chart.find(" d=\"", chart.find("mark series"));
    return chart.substr(begin, chart.find('"', begin + 4) - begin);
  };
  const std::string tail = first_curve(render_kl_percentiles(report));
  const std::string position = first_curve(render_kl_by_position(report));
  const char* note = "A student that is its teacher has no curve.";
  EXPECT_THAT(render_fidelity_page(report, {"", "1"}), Not(HasSubstr(note)));
  copy.all = {};
  for (Slice& slice : copy.where.by_position) slice.kl = 0;
  report.students.push_back(copy);
  EXPECT_EQ(first_curve(render_kl_percentiles(report)), tail);
  EXPECT_EQ(first_curve(render_kl_by_position(report)), position);
  EXPECT_THAT(render_fidelity_page(report, {"", "1"}), HasSubstr(note));
}

TEST(FidelityPage, ShortNamesStayDifferent) {
  FidelityReport report = test::plain_fidelity();
  EXPECT_EQ(short_names(report), (std::vector<std::string>{"linear", "hybrid"}));
  report.students[0].name = "a/student/";
  report.students[1].name = "b/student";
  EXPECT_EQ(short_names(report), (std::vector<std::string>{"a/student/", "b/student"}));
}

}  // namespace
}  // namespace dofla
