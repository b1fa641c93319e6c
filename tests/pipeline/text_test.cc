#include "dofla/pipeline/text.h"

#include <algorithm>
#include <fstream>
#include <thread>

#include <gtest/gtest.h>
#include <sys/stat.h>

#include "dofla/checkpoint/tokenizer.h"
#include "dofla/core/json.h"
#include "tests/support/expect_error.h"
#include "tests/support/fixtures.h"
#include "tests/support/full_disk.h"

namespace dofla {
namespace {

class Text : public testing::Test {
 protected:
  Text() {
    std::string lines;
    for (int i = 0; i < 40; ++i) {
      std::string text = "Document " + std::to_string(i);
      for (int j = 0; j < 5 + i % 7; ++j) text += " has words and " + std::to_string(i * j);
      documents.push_back(text);
      lines += Json({{"text", text}}).dump() + "\n";
    }
    write_whole(data, lines);
  }

  // The protocol, one document after the other.
  TokenIds expected() const {
    const Tokenizer tokenizer = Tokenizer::load(model.folder());
    TokenIds all;
    for (const std::string& document : documents) {
      if (!all.empty()) all.push_back(*model.config().end_of_text);
      const TokenIds ids = tokenizer.encode(document);
      all.insert(all.end(), ids.begin(), ids.end());
    }
    return all;
  }

  TextSource source(int64_t length = 16) const {
    return {.files = {data}, .length = length, .token_cache = folder};
  }
  std::vector<std::string> remarks_on(const TextSource& text) const {
    TextRemarks remarks;
    EXPECT_EQ(read_windows(model, text, {}, &remarks).all(),
              read_windows(model, {.files = {data}, .length = 16}).all());
    return remarks.token_cache;
  }
  fs::path token_file() const {
    for (const auto& entry : fs::directory_iterator(folder)) return entry.path();
    return {};
  }

  const Checkpoint model = Checkpoint(test::assets() / "wiki-mini");
  const test::ScratchFolder scratch;
  const fs::path data = scratch.path() / "a.jsonl", folder = scratch.path() / "cache";
  std::vector<std::string> documents;
};

TEST_F(Text, IsCutIntoWindows) {
  const TokenIds all = expected();
  const Windows text = open_windows(model, {.files = {data}, .length = 100});
  TokenIds read;
  int64_t predicted = 0;
  for (int pass = 0; pass < 2; ++pass) {
    read.clear();
    predicted = 0;
    for (TokenIds window; text.next(window);) {
      EXPECT_TRUE(window.size() == 100 || read.size() + window.size() == all.size());
      read.insert(read.end(), window.begin(), window.end());
      predicted += std::ssize(window) - 1;
    }
    EXPECT_EQ(read, all);
    EXPECT_EQ(text.predicted_tokens, predicted);
    text.rewind();
  }
  const WindowSet windows = read_windows(model, {.files = {data}, .length = 100});
  ASSERT_EQ(windows.size(), all.size() / 100);
  for (size_t i = 0; i < windows.size(); ++i)
    EXPECT_TRUE(std::ranges::equal(windows[i], std::span(all).subspan(100 * i, 100)));
}

TEST_F(Text, TheFirstWindowsAreThoseOfTheWholeText) {
  const auto all = read_windows(model, {.files = {data}, .length = 16}).all();
  const auto some = read_windows(model, {.files = {data}, .length = 16, .most = 5}).all();
  EXPECT_EQ(some, std::vector<TokenIds>(all.begin(), all.begin() + 5));
  EXPECT_EQ(read_windows(model, {.files = {data}, .length = 16, .most = int64_t{1} << 62}).all(),
            all);
  test::expect_error([&] { read_windows(model, {.files = {data}, .length = 1 << 20}); },
                     {"longer than the model's context"});
  write_whole(scratch.path() / "b.txt", "a");
  test::expect_error([&] { read_windows(model, {.files = {scratch.path() / "b.txt"}}); },
                     {"1 token: at least 2"});
}

TEST_F(Text, TheSecondRunFindsTheTokens) {
  const std::vector<std::string> first = remarks_on(source()), second = remarks_on(source());
  ASSERT_EQ(first.size(), 1u);
  EXPECT_NE(first[0].find("kept for the next run"), std::string::npos) << first[0];
  ASSERT_EQ(second.size(), 1u);
  EXPECT_NE(second[0].find("made by an earlier run"), std::string::npos) << second[0];
  // Windows of another length are of the same tokens.
  TextRemarks remarks;
  read_windows(model, source(50), {}, &remarks);
  EXPECT_NE(remarks.token_cache.at(0).find("made by an earlier run"), std::string::npos);
}

TEST_F(Text, LinesThatWereLeftOutAreRememberedWithTheTokens) {
  std::ofstream(data, std::ios::app) << "no document\n";
  TextSource text = source();
  text.skip_bad_lines = true;
  for (int run = 0; run < 2; ++run) {
    TextRemarks remarks;
    read_windows(model, text, {}, &remarks);
    EXPECT_EQ(remarks.skipped.count, 1);
    EXPECT_NE(remarks.skipped.first.find("a.jsonl:41"), std::string::npos);
  }
  text.skip_bad_lines = false;  // is no excuse to take the tokens that were made with it
  test::expect_error([&] { read_windows(model, text); }, {"a.jsonl:41"});
}

TEST_F(Text, ADamagedTokenFileIsMadeAgainAndSaid) {
  remarks_on(source());
  fs::resize_file(token_file(), fs::file_size(token_file()) - 1);
  const std::vector<std::string> said = remarks_on(source());
  ASSERT_EQ(said.size(), 2u);
  EXPECT_NE(said[0].find("truncated"), std::string::npos) << said[0];
  EXPECT_NE(said[0].find("the tokens are made again"), std::string::npos) << said[0];
  EXPECT_NE(said[1].find("kept for the next run"), std::string::npos) << said[1];
  EXPECT_EQ(remarks_on(source()).size(), 1u);
}

TEST_F(Text, AnotherTokenizerMakesItsOwnTokens) {
  remarks_on(source());
  const fs::path other = scratch.path() / "model";
  fs::copy(model.folder(), other);
  std::ofstream(other / "tokenizer.json", std::ios::app) << " ";
  TextRemarks remarks;
  read_windows(Checkpoint(other), source(), {}, &remarks);
  EXPECT_NE(remarks.token_cache.at(0).find("kept for the next run"), std::string::npos);
}

TEST_F(Text, AFullDiskEndsNoRun) {
  const test::FullDisk disk(100);
  const std::vector<std::string> said = remarks_on(source());
  ASSERT_EQ(said.size(), 1u);
  EXPECT_NE(said[0].find("the tokens are not kept: "), std::string::npos) << said[0];
  EXPECT_NE(said[0].find("File too large"), std::string::npos) << said[0];
  EXPECT_TRUE(fs::is_empty(folder));
}

TEST_F(Text, APlaceThatCannotBeWrittenEndsNoRun) {
  TextSource text = source();
  text.token_cache = data;  // is a file
  const std::vector<std::string> said = remarks_on(text);
  ASSERT_EQ(said.size(), 1u);
  EXPECT_NE(said[0].find("the tokens are not kept: "), std::string::npos) << said[0];
}

TEST_F(Text, FewTokensAreMadeEachTime) {
  TextSource text = source();
  text.most = kFewTokens / 16;
  TextRemarks remarks;
  read_windows(model, text, {}, &remarks);
  EXPECT_TRUE(remarks.token_cache.empty());
  EXPECT_FALSE(fs::exists(folder));
  text.most += 1;
  read_windows(model, text, {}, &remarks);
  EXPECT_EQ(remarks.token_cache.size(), 1u);
}

TEST_F(Text, APipeIsTheSameText) {
  const fs::path pipe = scratch.path() / "pipe";
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  for (const char* said : {"kept for the next run", "made by an earlier run"}) {
    const std::jthread writer([&] { std::ofstream(pipe) << read_text(data); });
    TextSource text = source();
    text.files = {pipe};
    const std::vector<std::string> remarks = remarks_on(text);
    ASSERT_EQ(remarks.size(), 1u);
    EXPECT_NE(remarks[0].find(said), std::string::npos) << remarks[0];
  }
}

TEST_F(Text, IdsToTrainOnAreWindowsToo) {
  write_whole(scratch.path() / "ids.json", "[[1, 2, 3], [4, 5, 6]]");
  const WindowSet windows = read_windows(model, {.ids = scratch.path() / "ids.json"});
  EXPECT_EQ(windows.all(), (std::vector<TokenIds>{{1, 2, 3}, {4, 5, 6}}));
  EXPECT_THROW(read_windows(model, {}), std::invalid_argument);
}

}  // namespace
}  // namespace dofla
