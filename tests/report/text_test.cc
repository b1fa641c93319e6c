#include "dofla/report/text.h"

#include <limits>

#include <gtest/gtest.h>

namespace dofla {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

TEST(ReportText, EscapesMarkup) {
  EXPECT_EQ(escape_html("<b a=\"1\" c='2'>&amp;"),
            "&lt;b a=&quot;1&quot; c=&#39;2&#39;&gt;&amp;amp;");
}

TEST(ReportText, KeepsUtf8AndReplacesWhatIsNot) {
  EXPECT_EQ(escape_html("λ = 2⁻⁸ 🙂\n\t"), "λ = 2⁻⁸ 🙂\n\t");
  EXPECT_EQ(escape_html("a\xff"
                        "b"),
            "a\uFFFDb");
  EXPECT_EQ(escape_html(std::string_view("a\0b", 3)), "a\uFFFDb");
  EXPECT_EQ(escape_html("\x7f\x1b"), "\uFFFD\uFFFD");
  EXPECT_EQ(escape_html("\xc0\xaf"), "\uFFFD\uFFFD");                 // an overlong slash
  EXPECT_EQ(escape_html("\xed\xa0\x80"), "\uFFFD\uFFFD\uFFFD");       // a surrogate
  EXPECT_EQ(escape_html("\xf4\x90\x80\x80").substr(0, 3), "\uFFFD");  // beyond U+10FFFF
  EXPECT_EQ(escape_html("\xe2\x82"), "\uFFFD\uFFFD");                 // cut short
  EXPECT_EQ(escape_html("\xe2<"), "\uFFFD&lt;");                      // must not swallow the markup
}

TEST(ReportText, FormatsNumbers) {
  EXPECT_EQ(format_number(0), "0");
  EXPECT_EQ(format_number(0.0123449), "0.01234");
  EXPECT_EQ(format_number(-173.84), "−173.8");
  EXPECT_EQ(format_number(1234.4), "1234");
  EXPECT_EQ(format_number(1234567), "1\u202F234\u202F567");
  EXPECT_EQ(format_number(1.25e-7), "1.25×10⁻⁷");
  EXPECT_EQ(format_number(1e300), "10³⁰⁰");
  EXPECT_EQ(format_number(std::numeric_limits<double>::quiet_NaN()), "NaN");
  EXPECT_EQ(format_number(-kInfinity), "−∞");
}

TEST(ReportText, FormatsDegreesOfFreedomAsThePaperDoes) {
  EXPECT_EQ(format_dof(173.84), "173.8");
  EXPECT_EQ(format_dof(5), "5.0");
  EXPECT_EQ(format_dof(173.8, 4.13), "173.8 ± 4.1");
  EXPECT_EQ(format_dof(173.8, 0), "173.8");
  EXPECT_EQ(format_dof(kInfinity), "∞");
  EXPECT_EQ(format_dof(1e300), "10³⁰⁰");
}

TEST(ReportText, FormatsLambdaCountsAndBytes) {
  EXPECT_EQ(format_lambda(0x1p-8), "2⁻⁸");
  EXPECT_EQ(format_lambda(1), "2⁰");
  EXPECT_EQ(format_lambda(0.003), "0.003");
  EXPECT_EQ(format_lambda(0), "0");
  EXPECT_EQ(format_lambda(kInfinity), "∞");
  EXPECT_EQ(format_count(-12345), "−12\u202F345");
  EXPECT_EQ(format_count(std::numeric_limits<int64_t>::min()),
            "−9\u202F223\u202F372\u202F036\u202F854\u202F775\u202F808");
}

}  // namespace
}  // namespace dofla
