#include "dofla/fidelity/where_lost.h"

#include <cmath>

#include <gtest/gtest.h>

#include "dofla/fidelity/compare.h"
#include "dofla/linear/linear_model.h"
#include "tests/support/fixtures.h"
#include "tests/support/linear_fixture.h"

namespace dofla {
namespace {

// What token i of a window says.
WindowStatistics with_kl(const std::vector<double>& kl) {
  WindowStatistics window;
  for (const double one : kl)
    window.push_back({.teacher_loss = 1, .student_loss = 1 + 2 * one, .kl = one});
  return window;
}

const Slice& named(const std::vector<Slice>& slices, const std::string& name) {
  for (const Slice& slice : slices)
    if (slice.name == name) return slice;
  throw std::runtime_error("no slice " + name);
}

TEST(WhereLost, SortsTokensByPositionFrequencyAndDistance) {
  // Token 5 again after one and after two tokens, 7 new, 6 again after four.
  const std::vector<TokenIds> ids = {{5, 6, 5, 7, 5, 6}};
  const std::vector<WindowStatistics> windows = {with_kl({1, 2, 4, 8, 16})};
  const WhereLost where = where_lost(ids, windows);

  ASSERT_EQ(where.by_position.size(), 2u);
  EXPECT_EQ(where.by_position[0].name, "2 to 4");
  EXPECT_EQ(where.by_position[0].tokens, 3);
  EXPECT_NEAR(where.by_position[0].kl, 7.0 / 3, 1e-12);
  EXPECT_NEAR(where.by_position[0].added, 14.0 / 3, 1e-12);
  EXPECT_NEAR(where.by_position[0].share, 7.0 / 31, 1e-12);
  EXPECT_EQ(where.by_position[1].name, "5 to 8");
  EXPECT_EQ(where.by_position[1].last, 8);
  EXPECT_EQ(where.by_position[1].kl, 12);

  EXPECT_EQ(where.by_distance.size(), 2u);
  const Slice& seen = named(where.by_distance, "seen 1 to 16 tokens ago");
  EXPECT_EQ(seen.tokens, 3);
  EXPECT_NEAR(seen.kl, (2 + 8 + 16) / 3.0, 1e-12);
  const Slice& fresh = named(where.by_distance, "new in its window");
  EXPECT_EQ(fresh.tokens, 2);  // the first 6, and 7; the first token of all is not predicted
  EXPECT_NEAR(fresh.kl, 2.5, 1e-12);

  ASSERT_EQ(where.by_frequency.size(), 1u);
  EXPECT_EQ(where.by_frequency[0].tokens, 5);
  EXPECT_NEAR(where.by_frequency[0].share, 1, 1e-12);
}

// Distances at the edges of the classes, and what stood in another window is new.
TEST(WhereLost, KnowsWhereClassesEnd) {
  for (const auto& [distance, name] :
       {std::pair(16, "seen 1 to 16 tokens ago"), std::pair(17, "17 to 64"),
        std::pair(64, "17 to 64"), std::pair(65, "65 to 256"), std::pair(257, "257 to 1,024"),
        std::pair(1025, "more than 1,024")}) {
    TokenIds window(static_cast<size_t>(distance) + 1);
    for (size_t i = 0; i < window.size(); ++i) window[i] = static_cast<int64_t>(i);
    window.back() = 0;
    std::vector<double> kl(window.size() - 1, 0.0);
    kl.back() = 3;
    const std::vector<TokenIds> ids = {window};
    const WhereLost where = where_lost(ids, std::vector<WindowStatistics>{with_kl(kl)});
    EXPECT_EQ(named(where.by_distance, name).kl, 3) << distance;
    EXPECT_EQ(named(where.by_distance, name).share, 1) << distance;
  }
  const std::vector<TokenIds> ids = {{1, 2}, {3, 1}};
  const WhereLost where =
      where_lost(ids, std::vector<WindowStatistics>{with_kl({1}), with_kl({1})});
  EXPECT_EQ(named(where.by_distance, "new in its window").tokens, 2);
}

TEST(WhereLost, RanksTokensByTheirCount) {
  // Token t stands 40 − t times, so that its rank is t + 1.
  TokenIds window;
  for (int64_t t = 0; t < 30; ++t) window.insert(window.end(), static_cast<size_t>(40 - t), t);
  std::vector<double> kl;
  for (size_t i = 1; i < window.size(); ++i) kl.push_back(window[i] < 10 ? 1 : 2);
  const std::vector<TokenIds> ids = {window};
  const WhereLost where = where_lost(ids, std::vector<WindowStatistics>{with_kl(kl)});
  EXPECT_EQ(named(where.by_frequency, "the 10 most frequent").kl, 1);
  EXPECT_EQ(named(where.by_frequency, "11th to 100th").kl, 2);
}

TEST(WorstTokens, AreApartAndInOrder) {
  std::vector<double> kl(100, 0.0);
  kl[10] = 5, kl[12] = 9, kl[40] = 7, kl[90] = 1;
  const std::vector<WindowStatistics> windows = {with_kl(kl), with_kl({0, 6, 0})};
  const auto worst = worst_tokens(windows, 20);
  ASSERT_EQ(worst.size(), 4u);  // that beside a worse one, and those without any, are left out
  EXPECT_EQ(worst[0].position, 13u);
  EXPECT_EQ(worst[0].kl, 9);
  EXPECT_EQ(worst[1].position, 41u);
  EXPECT_EQ(worst[2].window, 1u);
  EXPECT_EQ(worst[2].position, 2u);
  EXPECT_EQ(worst[3].kl, 1);
  EXPECT_EQ(worst_tokens(windows, 2).size(), 2u);
  EXPECT_TRUE(worst_tokens(std::vector<WindowStatistics>{with_kl({0, 0})}, 5).empty());
}

// The passage says what the comparison said of the same token.
TEST(WorstPassage, ShowsBothDistributions) {
  const Checkpoint checkpoint(fs::path(DOFLA_SOURCE_DIR) / "tests/models/stories260K");
  const Tokenizer tokenizer = Tokenizer::load(checkpoint.folder());
  const Transformer teacher(checkpoint);
  const Transformer student =
      make_linear_model(checkpoint, test::ragged_features(checkpoint.config()));
  const TokenIds ids = tokenizer.encode("Once upon a time there was a little girl who had a dog.");
  const std::vector<TokenIds> text = {ids};
  const Compared compared = compare(teacher, {&student}, each_of(text)).front();
  const TokenPlace place = worst_tokens(compared.windows, 1).at(0);
  const WorstPassage passage = worst_passage(teacher, student, tokenizer, ids, place);
  const TokenStatistics& token = compared.windows[0][place.position - 1];
  EXPECT_NEAR(passage.teacher_p, std::exp(-token.teacher_loss), 1e-4);
  EXPECT_NEAR(passage.student_p, std::exp(-token.student_loss), 1e-4);
  ASSERT_EQ(passage.teacher.size(), 5u);
  EXPECT_NEAR(passage.teacher[0].p, token.teacher_top_p, 1e-4);
  EXPECT_NEAR(passage.student[0].p, token.student_top_p, 1e-4);
  EXPECT_EQ(passage.teacher[0].text, tokenizer.decode(std::span(&token.teacher_top, 1)));
  EXPECT_EQ(passage.next, tokenizer.decode(std::span(&ids[place.position], 1)));
  EXPECT_EQ(passage.position, static_cast<int64_t>(place.position) + 1);
  for (size_t i = 1; i < 5; ++i) EXPECT_LE(passage.teacher[i].p, passage.teacher[i - 1].p);
}

}  // namespace
}  // namespace dofla
