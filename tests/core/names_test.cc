#include "dofla/core/names.h"

#include <gtest/gtest.h>

namespace dofla {

enum class Colour { kRed, kGreen, kBlue };

template <>
struct Names<Colour> {
  static constexpr std::string_view kWhat = "colour";
  static constexpr std::array kAll = {Name{Colour::kRed, "red"}, Name{Colour::kGreen, "green"},
                                      Name{Colour::kBlue, "blue"}};
};

namespace {

TEST(Names, LeadToValuesAndBack) {
  EXPECT_EQ(name(Colour::kGreen), "green");
  EXPECT_EQ(named<Colour>("blue"), Colour::kBlue);
  EXPECT_EQ(find_named<Colour>("red"), Colour::kRed);
  for (const char* other : {"", "Red", "re", "redd"}) EXPECT_FALSE(find_named<Colour>(other));
}

TEST(Names, AreListedInTheirOrder) {
  EXPECT_EQ(all_names<Colour>(), (std::vector<std::string>{"red", "green", "blue"}));
  EXPECT_EQ(one_of_names<Colour>(), "red, green or blue");
  EXPECT_EQ(one_of({"a", "b"}), "a or b");
  EXPECT_EQ(one_of({"a"}), "a");
}

TEST(Names, AnUnknownOneIsMisuseThatListsThem) {
  try {
    named<Colour>("pink");
    FAIL();
  } catch (const std::invalid_argument& error) {
    EXPECT_STREQ(error.what(), "no colour is called pink; expected red, green or blue");
  }
}

}  // namespace
}  // namespace dofla
