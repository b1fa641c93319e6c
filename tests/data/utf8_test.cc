#include "dofla/data/utf8.h"

#include <gtest/gtest.h>

namespace dofla {
namespace {

TEST(Utf8, FindsTheFirstByteThatIsNone) {
  EXPECT_EQ(find_invalid_utf8(""), std::string_view::npos);
  EXPECT_EQ(find_invalid_utf8("naïve 有 😀"), std::string_view::npos);
  EXPECT_EQ(find_invalid_utf8("ab\xff"), 2u);
  EXPECT_EQ(find_invalid_utf8("é\xc3"), 2u);          // cut short
  EXPECT_EQ(find_invalid_utf8("a\xed\xa0\x80"), 1u);  // a surrogate
}

TEST(Utf8, CountsCharactersNotBytes) {
  EXPECT_EQ(count_characters(""), 0);
  EXPECT_EQ(count_characters("naïve"), 5);
  EXPECT_EQ(count_characters("有😀"), 2);
}

}  // namespace
}  // namespace dofla
