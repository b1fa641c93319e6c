#include "dofla/report/page.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "tests/support/sample_report.h"

namespace dofla {
namespace {

size_t count(const std::string& text, const std::string& part) {
  size_t found = 0;
  for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++found;
  return found;
}

bool contains(const std::string& text, const std::string& part) {
  return count(text, part) > 0;
}

// The page without its style and script, which are ours and hold no data.
std::string markup(const ReportData& data) {
  const std::string page = render_page(data);
  const size_t style = page.find("<style>"), style_end = page.find("</head>");
  const size_t script = page.find("<script>"), script_end = page.find("</body>");
  return page.substr(0, style) + page.substr(style_end, script - style_end) +
         page.substr(script_end);
}

// Every element that is opened is closed, in order: what a browser mends silently, this names.
std::string first_unbalanced(const std::string& html) {
  std::vector<std::string> open;
  for (size_t at = html.find('<'); at != std::string::npos; at = html.find('<', at + 1)) {
    const std::string tag = html.substr(at + 1, html.find('>', at) - at - 1);
    const bool closes = tag.starts_with("/");
    const std::string name = tag.substr(closes, tag.find_first_of(" \n/", closes) - closes);
    if (tag.ends_with("/") || name == "!DOCTYPE" || name == "meta" || name == "link") continue;
    if (!closes) {
      open.push_back(name);
    } else if (open.empty() || open.back() != name) {
      return tag;
    } else {
      open.pop_back();
    }
  }
  return open.empty() ? "" : open.back();
}

// The values of an attribute wherever it stands.
std::vector<std::string> values_of(const std::string& html, const std::string& attribute) {
  const std::string begin = " " + attribute + "=\"";
  std::vector<std::string> values;
  for (size_t at = html.find(begin); at != std::string::npos; at = html.find(begin, at + 1))
    values.push_back(
        html.substr(at + begin.size(), html.find('"', at + begin.size()) - at - begin.size()));
  return values;
}

TEST(ReportPage, ShowsEveryHeadOfThePaper) {
  const std::string page = markup(test::paper_report());
  EXPECT_EQ(count(page, "class=\"mark cell"), 144u);
  EXPECT_EQ(count(page, "class=\"mark cell largest\""), 12u);
  EXPECT_TRUE(contains(
      page,
      "aria-label=\"Layer 2, head 5: 173.8 ± 7 degrees of freedom, the largest of its layer\""));
  EXPECT_TRUE(contains(page, "aria-label=\"Layer 5, head 12: 1.1 ± 0.094 degrees of freedom\""));
  EXPECT_TRUE(contains(page, "<b>173.8</b>"));  // in the table
}

TEST(ReportPage, ShowsPlanCurvesAndResults) {
  const std::string page = markup(test::paper_report());
  EXPECT_EQ(count(page, "class=\"mark bar\""), 12u);
  EXPECT_TRUE(contains(page, "aria-label=\"Layer 2: M = 182 ± 9.1\""));
  EXPECT_EQ(count(page, "class=\"mark series"), 3u * 12u);
  EXPECT_EQ(count(page, "class=\"faint\""), 144u - 12u);
  for (const char* part : {"4.017", "61.8 %", "75.5 MB", "2.4 MB", "18\u202F342", "λ = 2⁻⁸",
                           "dofla distill gpt2 --data wiki.jsonl", "C = 64"})
    EXPECT_TRUE(contains(page, part)) << part;
  size_t before = 0;
  for (int figure = 1; figure <= 5; ++figure) {
    const std::string number = "<b>Figure " + std::to_string(figure) + ".</b>";
    EXPECT_EQ(count(page, number), 1u) << number;
    EXPECT_LT(before, page.find(number)) << number;
    before = page.find(number);
  }
}

TEST(ReportPage, ShowsErrorsOfFeaturesWhereTheyWereMeasured) {
  ReportData data = test::paper_report();
  EXPECT_FALSE(contains(markup(data), "Random features"));
  for (LayerDof& layer : data.dof->layers) {
    layer.error_bound = {{32, 2.25}};
    layer.leverage_error = {{8, 0.875}, {32, 0.4375}};
    layer.gaussian_error = {{8, 0.9375}, {32, 0.9375}};
  }
  const std::string page = markup(data);
  EXPECT_TRUE(contains(page, "<h2>Random features</h2>"));
  EXPECT_EQ(count(page, "class=\"mark series"), 4u * 12u);
  EXPECT_EQ(count(page, "class=\"faint\""), 144u);  // of the spectra, and Gaussian features
  EXPECT_EQ(count(page, "<td>2.25</td>"), 12u);
  EXPECT_EQ(count(page, "<td>0.438</td>"), 12u);
  EXPECT_EQ(first_unbalanced(page), "");
}

TEST(ReportPage, ShowsSensitivityAndWhatItPredicted) {
  ReportData data;
  data.sensitivity =
      SensitivitySection{.layers = {{{4, 0.75}, {16, 0.5}}, {{4, 0.0625}, {16, -0.01}}},
                         .windows = 8,
                         .predicted = {0.375, 0.125},
                         .realised = {},
                         .realised_whole = {}};
  std::string page = markup(data);
  EXPECT_TRUE(contains(page, "<h2>Sensitivity</h2>"));
  EXPECT_EQ(count(page, "<figure>"), 2u);
  for (const char* part : {"8 windows", "M = 16", "0.0625", "−0.01", "0.375"})
    EXPECT_TRUE(contains(page, part)) << part;
  EXPECT_TRUE(contains(page, "<dd>0.5<small>the sum over the layers"));
  EXPECT_FALSE(contains(page, "Realised"));
  EXPECT_EQ(first_unbalanced(page), "");
  data.sensitivity->realised = {0.4375, std::nan("")};
  data.sensitivity->realised_whole = 0.6875;
  page = markup(data);
  EXPECT_EQ(count(page, "class=\"mark series"), 2u + 2u);
  for (const char* part : {"0.4375", "NaN", "0.6875"}) EXPECT_TRUE(contains(page, part)) << part;
  EXPECT_EQ(first_unbalanced(page), "");
}

TEST(ReportPage, LeavesOutSpectraThatWereNotMeasured) {
  ReportData data = test::paper_report();
  for (LayerDof& layer : data.dof->layers)
    for (HeadDof& head : layer.heads) head.spectrum.clear();
  const std::string page = markup(data);
  EXPECT_FALSE(contains(page, "Decay of the spectrum"));
  EXPECT_TRUE(contains(page, "against λ"));
  EXPECT_EQ(first_unbalanced(page), "");
}

TEST(ReportPage, HasOneTabStopAChart) {
  const std::string page = markup(test::paper_report());
  EXPECT_EQ(count(page, "role=\"img\" tabindex=\"0\""), 5u);
}

TEST(ReportPage, ShowsSingleHeadsWhereTheyDiffer) {
  const ReportData data = test::large_report();
  const std::string page = markup(data);
  EXPECT_EQ(count(page, "class=\"head\""), 48u * 25u);
  const auto [least, most] =
      std::minmax_element(data.plan->layers[0].heads.begin(), data.plan->layers[0].heads.end());
  EXPECT_TRUE(contains(page, "from " + std::to_string(*least) + " to " + std::to_string(*most) +
                                 " between its heads"));
}

TEST(ReportPage, IsSelfContained) {
  for (const ReportData& data : {test::paper_report(), test::large_report()}) {
    const std::string page = render_page(data);
    for (const char* part : {"http:", "https:", "//www", "@import", "src=", "url(\"", "url(h"})
      EXPECT_FALSE(contains(page, part)) << part;
    EXPECT_EQ(count(page, "href="), 1u);  // the empty icon
    EXPECT_TRUE(contains(page, "default-src 'none'"));
  }
}

TEST(ReportPage, IsWellFormed) {
  EXPECT_EQ(first_unbalanced(markup(test::paper_report())), "");
  EXPECT_EQ(first_unbalanced(markup(test::hostile_report())), "");
  EXPECT_EQ(first_unbalanced(markup(ReportData{})), "");
}

TEST(ReportPage, EscapesEveryName) {
  const std::string page = markup(test::hostile_report());
  EXPECT_FALSE(contains(page, "<script>alert"));
  EXPECT_FALSE(contains(page, "<img"));
  EXPECT_FALSE(contains(page, "onerror=alert(2)>"));
  EXPECT_FALSE(contains(page, "\x01"));
  EXPECT_FALSE(contains(page, "\xff"));
  // Title (twice), model, two facts, Gram scale, strategy (twice), loss, its floor, a control and
  // what is said of it, command, version.
  EXPECT_EQ(count(page, "&lt;script&gt;alert(1)"), 14u);
}

TEST(ReportPage, NamesNumbersThatAreNotFiniteAndDrawsNone) {
  const std::string page = markup(test::hostile_report());
  EXPECT_TRUE(contains(page, "Layer 1, head 1: NaN ± NaN degrees of freedom"));
  EXPECT_TRUE(contains(page, "Layer 1, head 2: ∞ ± −∞ degrees of freedom"));
  for (const char* attribute : {"x", "y", "d", "r", "cx", "cy", "width", "height", "viewBox",
                                "transform", "fill", "offset"})
    for (const std::string& value : values_of(page, attribute))
      for (const char* wrong : {"nan", "inf", "NaN", "∞"})
        EXPECT_FALSE(contains(value, wrong)) << attribute << "=" << value;
  for (const char* size : {"r", "width", "height"})
    for (const std::string& value : values_of(page, size))
      EXPECT_FALSE(value.starts_with("-")) << size << "=" << value;
}

TEST(ReportPage, LeavesOutWhatIsAbsent) {
  const std::string empty = markup(ReportData{});
  EXPECT_TRUE(contains(empty, "<title>dofla report</title>"));
  EXPECT_FALSE(contains(empty, "<section>"));
  EXPECT_FALSE(contains(empty, "<pre>"));

  ReportData data;
  data.plan = test::paper_report().plan;
  const std::string plan = markup(data);
  EXPECT_EQ(count(plan, "<figure>"), 1u);
  EXPECT_TRUE(contains(plan, "<h2>Dimension plan</h2>"));

  data = {};
  data.dof = DofSection{};
  data.training = TrainingSection{};
  const std::string hollow = markup(data);
  EXPECT_EQ(count(hollow, "<figure>"), 0u);
  EXPECT_EQ(count(hollow, "<section>"), 2u);
}

TEST(ReportPage, DrawsLongLossCurvesByMeans) {
  ReportData data;
  data.training = TrainingSection{};
  data.training->layer_loss.emplace_back();
  for (int step = 1; step <= 1000; ++step)
    data.training->layer_loss[0].push_back({double(step), step % 2 == 0 ? 1.0 : 3.0});
  const std::string page = markup(data);
  // Runs of 7 steps: 142 of them, and one of 6 at the end, which is 2 in the mean.
  EXPECT_TRUE(contains(page, "|994|1000\""));
  EXPECT_TRUE(contains(page, "|2\""));
}

TEST(ReportPage, DrawsTheFloorOfTheLoss) {
  ReportData data;
  data.training = TrainingSection{};
  data.training->layer_loss = {{{1, 4.0}, {2, 3.0}}};
  data.training->floor = {2.5};
  data.training->floor_name = "the teacher's loss";
  const std::string one = markup(data);
  EXPECT_TRUE(contains(one, "reference-label"));
  EXPECT_TRUE(contains(one, "Marked: <bdi>the teacher"));
  EXPECT_TRUE(contains(one, ">2.5<"));  // among the numbers
  data.training->layer_loss.push_back({{1, 5.0}, {2, 3.5}});
  data.training->floor = {2.5, 1.25};
  data.training->floor_name = "the entropy of the teacher's attention";
  const std::string two = markup(data);
  EXPECT_EQ(count(two, "class=\"faint\""), 2u);
  EXPECT_TRUE(contains(two, "Faint: <bdi>the entropy of the teacher"));
  EXPECT_TRUE(contains(two, ">1.25<"));
  data.training->floor.clear();
  EXPECT_FALSE(contains(markup(data), "cannot fall"));
}

TEST(ReportPage, SaysWhichLayersHaveAnErrorAboveOne) {
  ReportData data;
  data.training = TrainingSection{};
  data.training->layer_error = {0.25, 1.5, 0.75, std::nan("")};
  const std::string page = markup(data);
  EXPECT_TRUE(contains(page, "Layer 2, 4: an error above 1"));
  EXPECT_TRUE(contains(page, "data-y=\"0.25|1.5|0.75\""));
  EXPECT_TRUE(contains(page, ">0.25<"));
  data.training->layer_error = {0.25, 1};
  EXPECT_FALSE(contains(markup(data), "an error above 1"));
}

TEST(ReportPage, ShowsTheBaselinesOfTheStudent) {
  ReportData data;
  data.training = TrainingSection{};
  EXPECT_FALSE(contains(markup(data), "Baselines"));
  data.training->teacher_loss = 3;
  data.training->student_loss = 3.25;
  data.training->state_bytes = 2048;
  data.training->controls = {{"its exact keys alone", 3.75, 1024}, {"a window", 3.125, 2048}};
  data.training->controls_notes = {"the linear part does not pay here: the student < a window"};
  const std::string page = markup(data);
  for (const char* row :
       {"the student</th><td>0.25</td><td>2.0 kB</td>",
        "<bdi>its exact keys alone</bdi></th><td>0.75</td><td>1.0 kB</td>",
        "<bdi>a window</bdi></th><td>0.125</td><td>2.0 kB</td>", "the student &lt; a window"})
    EXPECT_TRUE(contains(page, row)) << row;
  EXPECT_EQ(first_unbalanced(page), "");
}

TEST(ReportPage, IsDeterministic) {
  EXPECT_EQ(render_page(test::paper_report()), render_page(test::paper_report()));
  EXPECT_EQ(render_page(test::hostile_report()), render_page(test::hostile_report()));
}

}  // namespace
}  // namespace dofla
