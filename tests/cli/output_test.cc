#include "cli/output.h"

#include <gtest/gtest.h>

namespace dofla::cli {
namespace {

TEST(Output, NumbersAreGroupedByThousands) {
  EXPECT_EQ(grouped(0), "0");
  EXPECT_EQ(grouped(999), "999");
  EXPECT_EQ(grouped(1000), "1,000");
  EXPECT_EQ(grouped(-1234567), "-1,234,567");
}

TEST(Output, ThingsAreCounted) {
  EXPECT_EQ(counted(1, "token"), "1 token");
  EXPECT_EQ(counted(0, "token"), "0 tokens");
  EXPECT_EQ(counted(1234, "token"), "1,234 tokens");
}

TEST(Output, ALineIsPrintableAndNotTooLong) {
  EXPECT_EQ(one_line("a\tb\nc\x7f\n"), "a b c");
  std::string expected(1000, 'x');
  expected += "…";
  EXPECT_EQ(one_line(std::string(5000, 'x')), expected);
}

}  // namespace
}  // namespace dofla::cli
