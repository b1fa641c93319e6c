#include "dofla/checkpoint/tokenizer/vocabulary.h"

#include <gtest/gtest.h>

namespace dofla {
namespace {

TEST(Vocabulary, FindsAllOfManyTokens) {
  Vocabulary vocabulary;
  for (int64_t i = 0; i < 5000; ++i) vocabulary.add(std::to_string(i), 2 * i, "test");
  for (int64_t i = 0; i < 5000; ++i) {
    EXPECT_EQ(vocabulary.find(std::to_string(i)), 2 * i);
    EXPECT_EQ(vocabulary.token(2 * i), std::to_string(i));
    EXPECT_FALSE(vocabulary.contains(2 * i + 1));
  }
  EXPECT_EQ(vocabulary.find("5000"), std::nullopt);
  EXPECT_EQ(vocabulary.count(), 5000);
  EXPECT_EQ(vocabulary.size(), 9999);
}

}  // namespace
}  // namespace dofla
