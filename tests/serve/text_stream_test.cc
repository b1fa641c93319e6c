#include "dofla/serve/text_stream.h"

#include <gtest/gtest.h>

#include "dofla/core/file.h"

namespace dofla {
namespace {

class TextStreamTest : public testing::Test {
 protected:
  const Tokenizer tokenizer = Tokenizer::load(fs::path(DOFLA_SOURCE_DIR) / "tests/tokenizers/gpt2");

  // The tokens of the text, each of these pieces one token or several.
  std::vector<int64_t> ids(const std::vector<std::string>& pieces) const {
    std::vector<int64_t> out;
    for (const std::string& piece : pieces)
      for (const int64_t id : tokenizer.encode(piece, false)) out.push_back(id);
    return out;
  }

  struct Seen {
    std::string text;
    std::vector<int64_t> offsets;
    bool stopped;
  };
  // All that is shown. What a stop string needs is never shown on the way.
  Seen stream(const std::vector<int64_t>& tokens, const std::vector<std::string>& stops) const {
    TextStream text_stream{StreamDecoder(tokenizer), stops};
    Seen seen;
    const auto add = [&](const TextStream::Shown& shown) {
      seen.text += shown.text;
      seen.offsets.insert(seen.offsets.end(), shown.offsets.begin(), shown.offsets.end());
    };
    for (const int64_t id : tokens) add(text_stream.next(id));
    add(text_stream.finish());
    seen.stopped = text_stream.stopped();
    return seen;
  }
};

TEST_F(TextStreamTest, WithoutStopsEveryTokenIsShownWhereItBegins) {
  const Seen seen = stream(ids({"The", " river", " flows"}), {});
  EXPECT_EQ(seen.text, "The river flows");
  EXPECT_EQ(seen.offsets, (std::vector<int64_t>{0, 3, 9}));
  EXPECT_FALSE(seen.stopped);
}

TEST_F(TextStreamTest, AStopStringEndsTheTextWhereverItLies) {
  // Within a token, across two, across many, at the very beginning.
  EXPECT_EQ(stream(ids({"The", " river", " flows"}), {"ive"}).text, "The r");
  EXPECT_EQ(stream(ids({"The", " river", " flows"}), {"r f"}).text, "The rive");
  EXPECT_EQ(stream(ids({"The", " river", " flows"}), {"e river flo"}).text, "Th");
  EXPECT_EQ(stream(ids({"The", " river", " flows"}), {"The"}).text, "");
  EXPECT_TRUE(stream(ids({"The", " river", " flows"}), {"ows"}).stopped);
}

TEST_F(TextStreamTest, TheFirstOfSeveralWins) {
  EXPECT_EQ(stream(ids({"one", " two", " three"}), {"three", " t"}).text, "one");
  EXPECT_EQ(stream(ids({"one", " two", " three"}), {"wo th", "two three"}).text, "one ");
}

TEST_F(TextStreamTest, WhatOnlyBeginsAStopStringIsShownInTheEnd) {
  const Seen seen = stream(ids({"The", " river", " flows"}), {" flows!"});
  EXPECT_EQ(seen.text, "The river flows");
  EXPECT_EQ(seen.offsets, (std::vector<int64_t>{0, 3, 9}));
  EXPECT_FALSE(seen.stopped);
}

TEST_F(TextStreamTest, NothingOfAStopStringIsShownOnTheWay) {
  TextStream text_stream{StreamDecoder(tokenizer), {"\n\nUser:"}};
  std::string shown;
  for (const int64_t id : ids({"Yes", ".", "\n", "\n", "User", ":"})) {
    shown += text_stream.next(id).text;
    EXPECT_EQ(shown.find('\n'), shown.npos);
  }
  EXPECT_EQ(shown, "Yes.");
  EXPECT_TRUE(text_stream.stopped());
  EXPECT_EQ(text_stream.next(ids({"more"})[0]).text, "");
  EXPECT_EQ(text_stream.finish().text, "");
}

TEST_F(TextStreamTest, TokensOfTheStopStringAreNotShown) {
  EXPECT_EQ(stream(ids({"The", " river", " flows"}), {" flows"}).offsets,
            (std::vector<int64_t>{0, 3}));
  // One that begins before it is.
  EXPECT_EQ(stream(ids({"The", " river", " flows"}), {"ver"}).offsets,
            (std::vector<int64_t>{0, 3}));
}

TEST_F(TextStreamTest, CharactersAreWholeAndCountedOnce) {
  const std::vector<int64_t> tokens = ids({"a", "🙂", "é", "b"});
  ASSERT_GT(tokens.size(), 4);  // the smile is several tokens
  TextStream text_stream{StreamDecoder(tokenizer), {}};
  std::string shown;
  std::vector<int64_t> offsets;
  for (const int64_t id : tokens) {
    const TextStream::Shown next = text_stream.next(id);
    shown += next.text;
    offsets.insert(offsets.end(), next.offsets.begin(), next.offsets.end());
    EXPECT_EQ(shown.find("\xEF\xBF\xBD"), shown.npos);
  }
  EXPECT_EQ(shown, "a🙂éb");
  EXPECT_EQ(offsets.size(), tokens.size());
  EXPECT_EQ(offsets.back(), 3);  // after three characters, not eight bytes
}

}  // namespace
}  // namespace dofla
