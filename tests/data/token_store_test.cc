#include "dofla/data/token_store.h"

#include <cstring>
#include <fstream>
#include <thread>

#include <gtest/gtest.h>

#include "dofla/core/random.h"
#include "dofla/data/token_writer.h"
#include "tests/support/expect_error.h"
#include "tests/support/fixtures.h"
#include "tests/support/full_disk.h"

namespace dofla {
namespace {

constexpr int64_t kSmall = 1000, kLarge = 100'000;  // vocabularies of 2 and of 4 bytes a token
constexpr int64_t kTokens = 200'001;                // several blocks of either, and a part of one

TokenIds some_ids(int64_t vocabulary) {
  Random random(static_cast<uint64_t>(vocabulary));
  TokenIds ids(kTokens);
  for (int64_t& id : ids) id = static_cast<int64_t>(random.below(vocabulary));
  ids[5] = vocabulary - 1;
  return ids;
}

// In stretches of different lengths.
void append_all(TokenWriter& writer, std::span<const int64_t> ids) {
  for (size_t taken = 1; !ids.empty(); taken = 3 * taken % 10007 + 1) {
    writer.append(ids.first(std::min(taken, ids.size())));
    ids = ids.subspan(std::min(taken, ids.size()));
  }
}

void expect_holds(const TokenStore& store, const TokenIds& ids) {
  ASSERT_EQ(store.count(), std::ssize(ids));
  TokenIds all(ids.size());
  store.read(0, all);
  EXPECT_EQ(all, ids);
  for (const int64_t first : {0, 1, 16'383, 16'384, 32'767, 32'768, 199'990}) {
    TokenIds some(11);
    store.read(first, some);
    EXPECT_EQ(some, TokenIds(ids.begin() + first, ids.begin() + first + 11)) << first;
  }
}

std::string no_ending(std::span<const std::byte>) {
  return "";
}

class TokenStores : public testing::Test {
 protected:
  static bool is_empty(const fs::path& folder) { return fs::is_empty(folder); }
  test::ScratchFolder scratch;
};

TEST_F(TokenStores, AnIdTakesTwoBytesWhereTheVocabularyFits) {
  EXPECT_EQ(bytes_per_token(65'536), 2u);
  EXPECT_EQ(bytes_per_token(65'537), 4u);
  EXPECT_THROW(bytes_per_token(0), std::invalid_argument);
  EXPECT_THROW(bytes_per_token((int64_t{1} << 32) + 1), std::invalid_argument);
}

TEST_F(TokenStores, HoldTheSameInMemoryAndInAFile) {
  for (const int64_t vocabulary : {kSmall, kLarge}) {
    const TokenIds ids = some_ids(vocabulary);
    TokenWriter in_memory(vocabulary), in_file(vocabulary, {}, 100'000);
    append_all(in_memory, ids);
    append_all(in_file, ids);
    const auto memory = in_memory.store(), file = in_file.store();
    EXPECT_FALSE(memory->in_file());
    EXPECT_TRUE(file->in_file());
    expect_holds(*memory, ids);
    expect_holds(*file, ids);
    EXPECT_EQ(memory->fingerprint(), file->fingerprint());
    TokenIds past_the_end(2);
    EXPECT_THROW(memory->read(kTokens - 1, past_the_end), std::invalid_argument);
  }
}

TEST_F(TokenStores, OtherTokensHaveAnotherFingerprint) {
  TokenIds ids = some_ids(kSmall);
  const auto fingerprint = [&] {
    TokenWriter writer(kSmall);
    writer.append(ids);
    return writer.store()->fingerprint();
  };
  const uint64_t before = fingerprint();
  EXPECT_EQ(fingerprint(), before);
  ids[150'000] ^= 1;
  EXPECT_NE(fingerprint(), before);
  ids[150'000] ^= 1;
  ids.push_back(0);
  EXPECT_NE(fingerprint(), before);
}

TEST_F(TokenStores, AKeptFileBeginsWithTheBlocks) {
  const TokenIds ids = some_ids(kSmall);
  const fs::path path = scratch.path() / "new/x.tokens";
  TokenWriter writer(kSmall, path);
  append_all(writer, ids);
  EXPECT_FALSE(fs::exists(path));
  std::string hashes;
  ASSERT_TRUE(writer.keep([&](std::span<const std::byte> bytes) {
    hashes.assign(reinterpret_cast<const char*>(bytes.data()), bytes.size());
    return std::string("end");
  }));
  const std::string contents = read_text(path);
  EXPECT_EQ(hashes.size(), 7 * sizeof(uint64_t));
  EXPECT_EQ(contents.substr(2 * kTokens), hashes + "end");
  std::vector<uint16_t> packed(kTokens);
  std::memcpy(packed.data(), contents.data(), 2 * kTokens);
  EXPECT_TRUE(std::ranges::equal(packed, ids));
}

TEST_F(TokenStores, WithoutKeepNothingIsLeft) {
  {
    TokenWriter writer(kSmall, scratch.path() / "x.tokens");
    append_all(writer, some_ids(kSmall));
  }
  EXPECT_TRUE(is_empty(scratch.path()));
}

// A disk that fills up at any point costs the file and nothing else.
TEST_F(TokenStores, AFullDiskLosesNoToken) {
  const TokenIds ids = some_ids(kSmall);
  for (const rlim_t room : {0, 65'536, 70'000, 390'000, 400'002}) {
    SCOPED_TRACE(room);
    const fs::path path = scratch.path() / "x.tokens";
    std::shared_ptr<const TokenStore> store;
    {
      const test::FullDisk disk(room);
      TokenWriter writer(kSmall, path);
      append_all(writer, ids);
      EXPECT_FALSE(writer.keep(no_ending));
      EXPECT_NE(writer.not_kept().find("x.tokens: cannot write: File too large"), std::string::npos)
          << writer.not_kept();
      store = writer.store();
    }
    EXPECT_TRUE(is_empty(scratch.path()));
    expect_holds(*store, ids);
  }
}

TEST_F(TokenStores, WithoutRoomForATemporaryFileTokensStayInMemory) {
  const TokenIds ids = some_ids(kSmall);
  for (const rlim_t room : {0, 65'536, 140'000}) {
    const test::FullDisk disk(room);
    TokenWriter writer(kSmall, {}, 100'000);
    append_all(writer, ids);
    const auto store = writer.store();
    EXPECT_FALSE(store->in_file());
    expect_holds(*store, ids);
  }
}

TEST_F(TokenStores, APlaceThatCannotBeWrittenIsSaid) {
  write_whole(scratch.path() / "file", "");
  TokenWriter writer(kSmall, scratch.path() / "file/x.tokens");
  writer.append(TokenIds{1, 2, 3});
  EXPECT_FALSE(writer.keep(no_ending));
  EXPECT_NE(writer.not_kept().find("Not a directory"), std::string::npos) << writer.not_kept();
  EXPECT_EQ(writer.store()->count(), 3);
}

// What a writer left that was killed is removed by the next one; what a living one writes is not.
TEST_F(TokenStores, WhatACrashLeftIsRemoved) {
  TokenWriter living(kSmall, scratch.path() / "a.tokens");
  write_whole(scratch.path() / "b.tokens.partial-1-0", "left");
  TokenWriter next(kSmall, scratch.path() / "b.tokens");
  EXPECT_FALSE(fs::exists(scratch.path() / "b.tokens.partial-1-0"));
  living.append(TokenIds{1, 2, 3});
  EXPECT_TRUE(living.keep(no_ending));
  EXPECT_TRUE(fs::exists(scratch.path() / "a.tokens"));
}

// Every block is checked whenever it is read.
TEST_F(TokenStores, DamageIsNeverTakenForText) {
  const TokenIds ids = some_ids(kSmall);
  const fs::path path = scratch.path() / "x.tokens";
  TokenWriter writer(kSmall, path);
  append_all(writer, ids);
  std::vector<uint64_t> hashes(7);
  ASSERT_TRUE(writer.keep([&](std::span<const std::byte> bytes) {
    std::memcpy(hashes.data(), bytes.data(), bytes.size());
    return std::string();
  }));
  const TokenStore store(kTokens, 2, hashes, std::make_shared<const OpenFile>(path));
  expect_holds(store, ids);
  std::fstream(path, std::ios::in | std::ios::out).seekp(2 * 40'000).put('\x7f').put('\x7f');
  TokenIds some(10);
  store.read(0, some);
  store.read(32'757, some);  // the end of the block before
  test::expect_error([&] { store.read(60'000, some); },
                     {"x.tokens: damaged: tokens from 32768 on", "remove it"});
  fs::resize_file(path, 2 * 150'000);
  store.read(100'000, some);
  test::expect_error([&] { store.read(140'000, some); }, {"x.tokens: damaged"});
}

TEST_F(TokenStores, ManyThreadsReadAtOnce) {
  const TokenIds ids = some_ids(kSmall);
  TokenWriter writer(kSmall, {}, 0);
  append_all(writer, ids);
  const auto store = writer.store();
  std::vector<std::jthread> threads;
  for (int t = 0; t < 4; ++t)
    threads.emplace_back([&, t] {
      TokenIds some(1000);
      for (int64_t i = 0; i < 50; ++i) {
        const int64_t first = (i * 7919 + t * 104'729) % (kTokens - 1000);
        store->read(first, some);
        EXPECT_TRUE(std::equal(some.begin(), some.end(), ids.begin() + first));
      }
    });
}

}  // namespace
}  // namespace dofla
