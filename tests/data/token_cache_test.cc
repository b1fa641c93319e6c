#include "dofla/data/token_cache.h"

#include <cstring>
#include <fstream>

#include <gtest/gtest.h>
#include <sys/stat.h>

#include "dofla/core/hash.h"
#include "dofla/data/token_writer.h"
#include "tests/support/expect_error.h"
#include "tests/support/fixtures.h"

namespace dofla {
namespace {

class TokenCaches : public testing::Test {
 protected:
  TokenCaches() {
    text = write("a.txt", std::string(200'000, 'x') + "middle" + std::string(200'000, 'y'));
  }

  fs::path write(const std::string& name, std::string_view contents) const {
    write_whole(scratch.path() / name, contents);
    return scratch.path() / name;
  }

  static Json settings() {
    return {{"tokenizer", 7}, {"vocabulary", 1000}, {"end_of_text", 0}, {"most", 0}};
  }
  TokenCache cache(const std::vector<fs::path>& files, const Json& with = settings()) const {
    return {scratch.path() / "cache", files, with};
  }

  // Keeps so many tokens as those of this text.
  static void keep(const TokenCache& cache, size_t files = 1, int64_t tokens = 100'000) {
    TokenWriter writer(1000, cache.file());
    for (int64_t i = 0; i < tokens; ++i) writer.append(TokenIds{i % 1000});
    ASSERT_TRUE(writer.keep([&](std::span<const std::byte> hashes) {
      return cache.ending(hashes, tokens, files, {2, "a.txt:3: bad"});
    })) << writer.not_kept();
  }

  // "" if there are tokens, else what is said of the file.
  static std::string found(const TokenCache& cache) {
    std::string defect;
    const auto contents = cache.find(defect);
    if (!contents) return defect.empty() ? "nothing" : defect;
    EXPECT_EQ(defect, "");
    EXPECT_EQ(contents->skipped.count, 2);
    EXPECT_EQ(contents->skipped.first, "a.txt:3: bad");
    TokenIds some(3);
    contents->tokens->read(40'998, some);
    EXPECT_EQ(some, (TokenIds{998, 999, 0}));
    return "";
  }

  // Changes a letter in the middle of a file and leaves its size as it was.
  static void change_middle(const fs::path& file) {
    std::fstream(file, std::ios::in | std::ios::out).seekp(200'002).put('D');
  }

  test::ScratchFolder scratch;
  fs::path text;
};

TEST_F(TokenCaches, KeepTokensForTheNextRun) {
  EXPECT_EQ(found(cache({text})), "nothing");
  keep(cache({text}));
  EXPECT_EQ(found(cache({text})), "");
}

// The same text elsewhere, on another machine or under another name, is the same text.
TEST_F(TokenCaches, TextIsKnownByItsContents) {
  keep(cache({text}));
  const fs::path elsewhere = scratch.path() / "other.txt";
  fs::copy_file(text, elsewhere);
  EXPECT_EQ(found(cache({elsewhere})), "");
  fs::rename(elsewhere, text);
  EXPECT_EQ(found(cache({text})), "");
}

TEST_F(TokenCaches, WhatTokensDependOnIsInTheName) {
  keep(cache({text}));
  for (const char* name : {"tokenizer", "vocabulary", "end_of_text", "most"}) {
    Json other = settings();
    other[name] = 999;
    EXPECT_EQ(found(cache({text}, other)), "nothing") << name;
  }
  EXPECT_EQ(found(cache({text, text})), "nothing");
  EXPECT_EQ(found(cache({write("b.txt", "short")})), "nothing");
  fs::copy_file(text, scratch.path() / "a.jsonl");  // lines of JSON are not a document
  EXPECT_EQ(found(cache({scratch.path() / "a.jsonl"})), "nothing");
}

// A change shows wherever it is, also where the size, both ends and the time of the last write are
// as they were.
TEST_F(TokenCaches, ChangedTextIsNeverTakenForWhatItWas) {
  keep(cache({text}));
  const auto written = fs::last_write_time(text);
  change_middle(text);
  fs::last_write_time(text, written);
  const std::string said = found(cache({text}));
  EXPECT_NE(said.find("a.txt was changed since the tokens were made"), std::string::npos) << said;
  keep(cache({text}));
  EXPECT_EQ(found(cache({text})), "");
  write("a.txt", std::string(200'000, 'z') + "middle" + std::string(200'000, 'y'));
  EXPECT_EQ(found(cache({text})), "nothing");  // its beginning is another
}

// A file that the system says is the same is not read again, however large: here the hash that is
// kept of it is another, which only shows where the text was copied.
TEST_F(TokenCaches, AnUnchangedFileIsNotReadAgain) {
  const fs::path old = test::assets() / "wikipedia.jsonl.zst";
  const fs::path token_file = cache({old}).file();
  keep(cache({old}));
  std::string contents = read_text(token_file);
  const size_t json = contents.find("{\"about\""), hashes = 2 * 100'000;
  const size_t at = contents.find("\"hash\":\"") + 8;
  contents[at] = contents[at] == '0' ? '1' : '0';
  const std::string_view checked(contents.data() + hashes, contents.size() - 24 - hashes);
  const uint64_t hash = xxh64(std::as_bytes(std::span(checked)));
  std::memcpy(contents.data() + contents.size() - 16, &hash, sizeof(hash));
  ASSERT_LT(json, at);
  write_whole(token_file, contents);
  EXPECT_EQ(found(cache({old})), "");
  const fs::path copy = scratch.path() / "copy.jsonl.zst";
  fs::copy_file(old, copy);
  EXPECT_NE(found(cache({copy})).find("copy.jsonl.zst was changed"), std::string::npos);
}

TEST_F(TokenCaches, TextThatChangesWhileItIsReadIsNotKept) {
  const TokenCache now = cache({text});
  change_middle(text);
  TokenWriter writer(1000, now.file());
  writer.append(TokenIds{1, 2, 3});
  EXPECT_FALSE(
      writer.keep([&](std::span<const std::byte> hashes) { return now.ending(hashes, 3, 1, {}); }));
  EXPECT_NE(writer.not_kept().find("a.txt: was written to while it was read"), std::string::npos);
  EXPECT_EQ(writer.store()->count(), 3);
  EXPECT_TRUE(fs::is_empty(scratch.path() / "cache"));
}

// Only what was read of a text has to be the same.
TEST_F(TokenCaches, FilesThatWereNotReachedMayChange) {
  const fs::path second = scratch.path() / "b.txt";
  fs::copy_file(text, second);
  keep(cache({text, second}));
  change_middle(second);
  EXPECT_EQ(found(cache({text, second})), "");
  change_middle(text);
  EXPECT_NE(found(cache({text, second})), "");
}

TEST_F(TokenCaches, ATruncatedFileIsRefused) {
  const TokenCache now = cache({text});
  keep(now);
  const std::string whole = read_text(now.file());
  for (const size_t size :
       {size_t{0}, size_t{10}, size_t{24}, size_t{65'536}, whole.size() / 2, whole.size() - 1}) {
    write_whole(now.file(), whole.substr(0, size));
    const std::string said = found(now);
    EXPECT_NE(said.find(".tokens: truncated"), std::string::npos) << size << ": " << said;
  }
  write_whole(now.file(), whole);
  EXPECT_EQ(found(now), "");
}

// Every byte after the blocks counts; blocks are checked when they are read (token_store_test.cc).
TEST_F(TokenCaches, ADamagedEndingIsRefused) {
  const TokenCache now = cache({text});
  keep(now);
  const std::string whole = read_text(now.file());
  for (size_t at = 200'000; at < whole.size(); at += at < 200'032 ? 1 : 7) {
    std::string damaged = whole;
    damaged[at] ^= 1;
    write_whole(now.file(), damaged);
    EXPECT_NE(found(now), "") << at;
  }
  for (const std::string& other : {whole.substr(2), "xx" + whole}) {
    write_whole(now.file(), other);
    const std::string said = found(now);
    EXPECT_NE(said.find("not the size that 100000 tokens take"), std::string::npos) << said;
  }
}

// A token file that somebody renamed is known by what stands in it.
TEST_F(TokenCaches, AFileOfAnotherTokenizerIsRefused) {
  Json other = settings();
  other["tokenizer"] = 8;
  keep(cache({text}, other));
  fs::rename(cache({text}, other).file(), cache({text}).file());
  const std::string said = found(cache({text}));
  EXPECT_NE(said.find(".tokens: of another text or tokenizer"), std::string::npos) << said;
}

TEST_F(TokenCaches, WhatIsNoFileIsRefused) {
  fs::create_directories(cache({text}).file());
  EXPECT_NE(found(cache({text})).find(".tokens: "), std::string::npos);
}

}  // namespace
}  // namespace dofla
