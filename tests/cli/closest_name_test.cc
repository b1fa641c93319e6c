#include "cli/closest_name.h"

#include <gtest/gtest.h>

namespace dofla::cli {
namespace {

const std::vector<std::string> kNames = {"distill", "dof", "plan", "--length", "--loss"};

TEST(ClosestName, TakesTheFewestEdits) {
  EXPECT_EQ(closest_name("distil", kNames), "distill");     // left out
  EXPECT_EQ(closest_name("distilll", kNames), "distill");   // added
  EXPECT_EQ(closest_name("dictill", kNames), "distill");    // replaced
  EXPECT_EQ(closest_name("--lenght", kNames), "--length");  // swapped
  EXPECT_EQ(closest_name("--los", kNames), "--loss");
  EXPECT_EQ(closest_name("doff", kNames), "dof");
}

TEST(ClosestName, IsNoneOfThoseThatAreFarAway) {
  EXPECT_EQ(closest_name("convert", kNames), "");
  EXPECT_EQ(closest_name("distance", kNames), "");
  EXPECT_EQ(closest_name("pan", {"dof"}), "");
  EXPECT_EQ(closest_name("", kNames), "");
  EXPECT_EQ(closest_name("do", {"xo"}), "") << "half of the word";
  EXPECT_EQ(closest_name(std::string(100'000, 'd'), kNames), "");
}

}  // namespace
}  // namespace dofla::cli
