#include "dofla/data/tokenize.h"

#include <atomic>
#include <chrono>
#include <fstream>
#include <thread>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "dofla/core/json.h"
#include "dofla/core/random.h"
#include "tests/support/expect_error.h"
#include "tests/support/fixtures.h"

namespace dofla {
namespace {

using testing::ElementsAre;

constexpr int64_t kEnd = 99;

// Every letter is a token of its own: 'a' is 0. Long documents take longer, so that threads finish
// in another order than they began in.
TokenIds letters(std::string_view text) {
  TokenIds ids;
  for (const char c : text) ids.push_back(c - 'a');
  return ids;
}

class Tokenize : public testing::Test {
 protected:
  fs::path write(const std::string& name, std::string_view contents) {
    write_whole(scratch.path() / name, contents);
    return scratch.path() / name;
  }

  // Documents of 1 to 3000 letters, and what their tokens must be.
  fs::path many_documents(int64_t count, TokenIds& expected) {
    Random random(count);
    std::string lines;
    expected.clear();
    for (int64_t i = 0; i < count; ++i) {
      std::string text(1 + random.below(3000), 'a');
      for (char& c : text) c = static_cast<char>('a' + random.below(26));
      lines += Json({{"text", text}}).dump() + "\n";
      if (i > 0) expected.push_back(kEnd);
      for (const char c : text) expected.push_back(c - 'a');
    }
    return write("many.jsonl", lines);
  }

  static TokenIds tokens(const TextFiles& files, TokenizeOptions options,
                         Tokenized* about = nullptr) {
    if (options.vocabulary == 0) options.vocabulary = 100;
    TokenIds all;
    const Tokenized done = tokenize(files, letters, options, [&](std::span<const int64_t> ids) {
      all.insert(all.end(), ids.begin(), ids.end());
    });
    EXPECT_EQ(done.tokens, std::ssize(all));
    if (about != nullptr) *about = done;
    return all;
  }

  test::ScratchFolder scratch;
};

TEST_F(Tokenize, JoinsDocumentsAndFiles) {
  const fs::path first = write("a.jsonl", "{\"text\": \"abc\"}\n{\"text\": \"de\"}\n");
  const fs::path second = write("b.txt", "fg");
  for (const int threads : {1, 2})
    EXPECT_THAT(tokens({first, second}, {.end_of_text = kEnd, .threads = threads}),
                ElementsAre(0, 1, 2, kEnd, 3, 4, kEnd, 5, 6));
}

TEST_F(Tokenize, AnyNumberOfThreadsGivesTheSameTokens) {
  TokenIds expected;
  const fs::path file = many_documents(700, expected);
  for (const int threads : {1, 2, 3, 8})
    for (const size_t ahead : {size_t{1}, size_t{200'000}, size_t{2} << 20})
      EXPECT_EQ(tokens({file}, {.end_of_text = kEnd, .threads = threads, .ahead = ahead}), expected)
          << threads << " " << ahead;
}

TEST_F(Tokenize, StopsAfterSoManyTokens) {
  TokenIds expected;
  const fs::path file = many_documents(300, expected);
  for (const int threads : {1, 4})
    for (const int64_t most : {1, 2, 3001, 100'000})
      EXPECT_EQ(tokens({file}, {.end_of_text = kEnd, .most = most, .threads = threads}),
                TokenIds(expected.begin(), expected.begin() + most));
}

// Documents are read ahead: a defect must show where it is reached and nowhere else.
TEST_F(Tokenize, TheFirstDefectInTheOrderOfTheTextCounts) {
  const fs::path file = write("a.jsonl",
                              "{\"text\": \"abc\"}\n{\"text\": \"a~c\"}\nno document\n"
                              "{\"text\": \"de\"}\n");
  for (const int threads : {1, 2}) {
    const TokenizeOptions options = {.end_of_text = kEnd, .vocabulary = 25, .threads = threads};
    test::expect_error([&] { tokens({file}, options); }, {"id 29", "vocabulary has 25"});
  }
}

TEST_F(Tokenize, ADefectAfterTheLastTokenIsNotReached) {
  const fs::path bad = write("a.jsonl", "{\"text\": \"abc\"}\nno document\n");
  for (const int threads : {1, 2}) {
    TokenizeOptions options = {.end_of_text = kEnd, .most = 3, .threads = threads};
    EXPECT_THAT(tokens({bad}, options), ElementsAre(0, 1, 2));
    options.most = 4;
    test::expect_error([&] { tokens({bad}, options); }, {"a.jsonl:2"});
  }
}

TEST_F(Tokenize, CountsTheSkippedLinesBeforeTheLastDocument) {
  const fs::path file = write("a.jsonl",
                              "bad\n{\"text\": \"abc\"}\nbad\n{\"text\": \"de\"}\nbad\nbad\n"
                              "{\"text\": \"f\"}\nbad\n");
  for (const int threads : {1, 2}) {
    TokenizeOptions options = {
        .end_of_text = kEnd, .documents = {.skip_bad_lines = true}, .threads = threads};
    Tokenized done;
    for (const auto& [most, skipped] : {std::pair{3, 1}, {5, 2}, {8, 4}, {0, 5}}) {
      options.most = most;
      tokens({file}, options, &done);
      EXPECT_EQ(done.skipped.count, skipped) << most;
      EXPECT_NE(done.skipped.first.find("a.jsonl:1"), std::string::npos);
    }
  }
}

TEST_F(Tokenize, SaysHowManyFilesItRead) {
  const fs::path a = write("a.txt", "abc"), b = write("b.txt", "def");
  Tokenized done;
  tokens({a, b}, {.end_of_text = kEnd, .most = 3, .threads = 1, .ahead = 1}, &done);
  EXPECT_GE(done.files, 1u);
  tokens({a, b}, {.end_of_text = kEnd}, &done);
  EXPECT_EQ(done.files, 2u);
}

TEST_F(Tokenize, OneDocumentNeedsNoEndOfText) {
  EXPECT_THAT(tokens({write("a.txt", "abc")}, {}), ElementsAre(0, 1, 2));
  const fs::path two = write("b.jsonl", "{\"text\": \"abc\"}\n{\"text\": \"de\"}\n");
  test::expect_error([&] { tokens({two}, {}); }, {"no end-of-text token"});
  EXPECT_THAT(tokens({two}, {.most = 3}), ElementsAre(0, 1, 2));
}

TEST_F(Tokenize, StopsWhenAsked) {
  TokenIds expected;
  const fs::path file = many_documents(300, expected);
  const std::atomic<bool> stop = true;
  const Progress progress([](const ProgressUpdate&) {}, &stop);
  EXPECT_THROW(tokenize(
                   {file}, letters, {.end_of_text = kEnd, .vocabulary = 100, .threads = 2},
                   [](std::span<const int64_t>) {}, progress),
               Cancelled);
}

// Whatever the size of the text, no more of it is held than is read ahead: 20 times as much text,
// the same bound. Encoding is held up at its first document, so that the reader gets as far ahead
// as it ever can.
TEST_F(Tokenize, HoldsNoMoreOfALongTextThanOfAShortOne) {
  constexpr size_t kAhead = 300'000, kDocument = 10'000;
  for (const int64_t documents : {100, 2000}) {
    {
      std::ofstream out(scratch.path() / "long.jsonl");
      const std::string line = Json({{"text", std::string(kDocument, 'b')}}).dump() + "\n";
      for (int64_t i = 0; i < documents; ++i) out << line;
    }
    std::atomic<bool> first = true;
    const Encode slow_at_first = [&](std::string_view text) {
      if (first.exchange(false)) std::this_thread::sleep_for(std::chrono::milliseconds(200));
      return letters(text);
    };
    const Tokenized done =
        tokenize({scratch.path() / "long.jsonl"}, slow_at_first,
                 {.end_of_text = kEnd, .vocabulary = 100, .threads = 2, .ahead = kAhead},
                 [](std::span<const int64_t>) {});
    EXPECT_EQ(done.tokens, documents * static_cast<int64_t>(kDocument + 1) - 1);
    EXPECT_GT(done.most_bytes_ahead, kAhead);
    EXPECT_LT(done.most_bytes_ahead, 2 * kAhead + 2 * (size_t{64} << 10));
  }
}

}  // namespace
}  // namespace dofla
