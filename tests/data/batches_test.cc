#include "dofla/data/batches.h"

#include <algorithm>
#include <set>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/fixtures.h"

namespace dofla {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

class Batches : public testing::Test {
 protected:
  fs::path write(const std::string& name, std::string_view contents) {
    write_whole(scratch.path() / name, contents);
    return scratch.path() / name;
  }

  // Every letter is a token of its own: 'a' is 0.
  static TokenIds letters(std::string_view text) {
    TokenIds ids;
    for (const char c : text) ids.push_back(c - 'a');
    return ids;
  }

  static std::vector<TokenIds> windows(std::vector<fs::path> files, const WindowOptions& options) {
    WindowReader reader(std::move(files), letters, options);
    std::vector<TokenIds> all;
    for (TokenIds window; reader.next(window);) all.push_back(window);
    return all;
  }

  template <class Body>
  static std::string error_of(const Body& body) {
    try {
      body();
    } catch (const Error& error) {
      return error.what();
    }
    return "no error";
  }

  test::ScratchFolder scratch;
};

TEST_F(Batches, WindowsCrossDocumentsAndFiles) {
  const fs::path first = write("a.jsonl", "{\"text\": \"abc\"}\n{\"text\": \"de\"}\n");
  const fs::path second = write("b.txt", "fg");
  EXPECT_THAT(windows({first, second}, {.length = 4, .end_of_text = 99, .most = 0}),
              ElementsAre(ElementsAre(0, 1, 2, 99), ElementsAre(3, 4, 99, 5)));  // [6] is dropped
  EXPECT_THAT(windows({first, second}, {.length = 5, .end_of_text = 99, .most = 0}),
              ElementsAre(ElementsAre(0, 1, 2, 99, 3), ElementsAre(4, 99, 5, 6)));
  EXPECT_THAT(windows({first, second}, {.length = 2, .end_of_text = 99, .most = 2}),
              ElementsAre(ElementsAre(0, 1), ElementsAre(2, 99)));
  EXPECT_THAT(windows({first, second}, {.length = 100, .end_of_text = 99, .most = 0}),
              ElementsAre(ElementsAre(0, 1, 2, 99, 3, 4, 99, 5, 6)));
}

TEST_F(Batches, OneDocumentNeedsNoEndOfText) {
  EXPECT_THAT(windows({write("a.txt", "abcd")}, {.length = 3, .end_of_text = {}, .most = 0}),
              ElementsAre(ElementsAre(0, 1, 2)));
  const fs::path two = write("b.jsonl", "{\"text\": \"abc\"}\n{\"text\": \"de\"}\n");
  EXPECT_THAT(error_of([&] { windows({two}, {.length = 9, .end_of_text = {}, .most = 0}); }),
              HasSubstr("no end-of-text token"));
}

TEST_F(Batches, TooFewTokensAreAnError) {
  EXPECT_THAT(
      error_of([&] { windows({write("a.txt", "a")}, {.length = 9, .end_of_text = 1, .most = 0}); }),
      HasSubstr("1 token:"));
  EXPECT_THROW(windows({write("a.txt", "ab")}, {.length = 1, .end_of_text = 1, .most = 0}),
               std::invalid_argument);
}

TEST_F(Batches, ReadsIds) {
  const SequenceLimits limits = {.vocabulary = 10, .shortest = 1, .longest = 4};
  EXPECT_THAT(read_ids(write("a.json", "[[1, 2], [9]]"), limits),
              ElementsAre(ElementsAre(1, 2), ElementsAre(9)));
  EXPECT_THAT(read_ids(write("a.json", "[0, 9]"), limits), ElementsAre(ElementsAre(0, 9)));
}

TEST_F(Batches, RefusesBadIds) {
  const SequenceLimits limits = {.vocabulary = 10, .shortest = 2, .longest = 4};
  const auto error = [&](std::string_view json) {
    return error_of([&] { read_ids(write("a.json", json), limits); });
  };
  for (const char* bad : {"", "[", "5", "{}", "null", "[]", "\"a\""})
    EXPECT_THAT(error(bad), HasSubstr("a.json: ")) << bad;
  for (const char* bad : {"10", "-1", "1.5", "true", "\"a\"", "null", "18446744073709551615",
                          "-9223372036854775808", "1e300", "[1]"})
    EXPECT_THAT(error(fmt::format("[[0, 1], [1, {}]]", bad)),
                HasSubstr("a.json: sequence 1: token 1: expected an id from 0 to 9"))
        << bad;
  EXPECT_THAT(error("[[0, 1], 5]"), HasSubstr("sequence 1: expected an array"));
  EXPECT_THAT(error("[[1]]"), HasSubstr("sequence 0: 1 tokens, fewer than the 2"));
  EXPECT_THAT(error("[[1, 1, 1, 1, 1]]"), HasSubstr("5 tokens, more than the 4"));
}

std::vector<TokenIds> numbered_windows(int64_t count) {
  std::vector<TokenIds> windows;
  for (int64_t i = 0; i < count; ++i) windows.push_back({i, 1000 + i});
  return windows;
}

TokenIds first_column(const Tensor& batch) {
  TokenIds ids;
  for (int64_t i = 0; i < batch.size(0); ++i) {
    ids.push_back(batch.data<int64_t>()[2 * i]);
    EXPECT_EQ(batch.data<int64_t>()[2 * i + 1], 1000 + ids.back());
  }
  return ids;
}

TEST_F(Batches, IdsToTrainOnHaveOneLength) {
  const fs::path file = write("a.json", "[[1, 2], [3, 4], [5], [6, 7]]");
  SequenceLimits limits = {.vocabulary = 10, .shortest = 1, .longest = 3};
  EXPECT_EQ(read_ids(file, limits).size(), 4u);
  limits.same_length = true;
  EXPECT_THAT(error_of([&] { read_ids(file, limits); }),
              HasSubstr("a.json: sequence 2: 1 tokens, the first has 2"));
}

TEST(ShuffledBatches, EveryPassSeesEveryWindowOnce) {
  ShuffledBatches batches(numbered_windows(12), 4, 7);
  std::vector<TokenIds> passes;
  for (int64_t pass = 0; pass < 3; ++pass) {
    TokenIds seen;
    for (int64_t step = 3 * pass; step < 3 * pass + 3; ++step) {
      const TokenIds batch = first_column(batches.at(step));
      seen.insert(seen.end(), batch.begin(), batch.end());
    }
    passes.push_back(seen);
    EXPECT_EQ(std::set<int64_t>(seen.begin(), seen.end()).size(), 12u);
  }
  EXPECT_NE(passes[0], passes[1]);
  EXPECT_NE(passes[1], passes[2]);
}

TEST(ShuffledBatches, ABatchDependsOnSeedAndStepAlone) {
  const auto windows = numbered_windows(10);
  ShuffledBatches whole(windows, 4, 7);  // batches of 4 straddle passes of 10
  std::vector<TokenIds> all;
  for (int64_t step = 0; step < 20; ++step) all.push_back(first_column(whole.at(step)));
  for (const int64_t step : {19, 0, 2, 7, 7, 12}) {
    ShuffledBatches resumed(windows, 4, 7);
    EXPECT_EQ(first_column(resumed.at(step)), all[static_cast<size_t>(step)]);
    EXPECT_EQ(first_column(whole.at(step)), all[static_cast<size_t>(step)]);
  }
  ShuffledBatches other(windows, 4, 8);
  EXPECT_NE(first_column(other.at(0)), all[0]);
}

TEST(ShuffledBatches, RefusesWhatItCannotBatch) {
  EXPECT_THROW(ShuffledBatches({}, 1, 0), std::invalid_argument);
  EXPECT_THROW(ShuffledBatches({{1, 2}, {1}}, 1, 0), std::invalid_argument);
  EXPECT_THROW(ShuffledBatches({{1, 2}}, 0, 0), std::invalid_argument);
  EXPECT_THROW(ShuffledBatches({{1, 2}}, 1, 0).at(-1), std::invalid_argument);
}

}  // namespace
}  // namespace dofla
