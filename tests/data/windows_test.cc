#include "dofla/data/windows.h"

#include <cstring>
#include <fstream>

#include <gtest/gtest.h>

#include "dofla/core/fingerprint.h"
#include "dofla/data/token_writer.h"
#include "tests/support/expect_error.h"
#include "tests/support/fixtures.h"

namespace dofla {
namespace {

constexpr size_t kAnyMemory = size_t{1} << 30;

std::shared_ptr<const TokenStore> counted(int64_t tokens, size_t most_in_memory = kAnyMemory) {
  TokenWriter writer(100'000, {}, most_in_memory);
  for (int64_t id = 0; id < tokens; ++id) writer.append(TokenIds{id});
  return writer.store();
}

TEST(WindowSet, CutsTokensIntoWholeWindows) {
  const WindowSet windows(counted(11), 4);
  EXPECT_EQ(windows.all(), (std::vector<TokenIds>{{0, 1, 2, 3}, {4, 5, 6, 7}}));
  EXPECT_EQ(windows.size(), 2u);
  EXPECT_EQ(windows.length(), 4);
  EXPECT_EQ(windows.front(), (TokenIds{0, 1, 2, 3}));
  EXPECT_THROW(windows[2], std::invalid_argument);
}

TEST(WindowSet, AShortTextIsOneWindow) {
  const WindowSet windows(counted(3), 4);
  EXPECT_EQ(windows.all(), (std::vector<TokenIds>{{0, 1, 2}}));
  EXPECT_EQ(windows.length(), 3);
}

TEST(WindowSet, ASliceIsTheSameWindows) {
  const WindowSet windows(counted(100), 7);
  const WindowSet part = windows.slice(3, 9).slice(2, 4);
  const std::vector<TokenIds> all = windows.all();
  EXPECT_EQ(part.all(), std::vector<TokenIds>(all.begin() + 5, all.begin() + 9));
  EXPECT_TRUE(windows.slice(14, 0).empty());
  EXPECT_THROW(windows.slice(13, 2), std::invalid_argument);
  EXPECT_THROW(part[4], std::invalid_argument);
}

TEST(WindowSet, IdsInMemoryHaveOneLength) {
  const std::vector<TokenIds> ids = {{1, 70'000}, {3, 4'294'967'295}};
  EXPECT_EQ(WindowSet(ids).all(), ids);
  EXPECT_TRUE(WindowSet(std::vector<TokenIds>()).empty());
  EXPECT_THROW(WindowSet({{1, 2}, {3}}), std::invalid_argument);
}

// Of all ids one by one, as runs of earlier versions have it.
TEST(WindowSet, FingerprintsAreOfTheIds) {
  const WindowSet windows(counted(100'000, 0), 1000);
  Fingerprint print;
  for (uint64_t id = 5000; id < 97'000; ++id) print.add(id);
  EXPECT_EQ(fingerprint_of(windows.slice(5, 92)), print.text());
  EXPECT_EQ(fingerprint_of(WindowSet(windows.slice(5, 92).all())), print.text());
  EXPECT_NE(fingerprint_of(windows.slice(5, 91)), print.text());
}

constexpr int64_t kManyTokens = WindowSet::kReadWhole + 2000;

// Texts that are too long to be read for it are told apart all the same.
TEST(WindowSet, ALongTextIsNotReadForItsFingerprint) {
  const auto store = [](uint64_t hash) {  // nothing lies there
    const size_t blocks = 2 * kManyTokens / TokenStore::kBlock + 1;
    std::vector<uint64_t> hashes(blocks, 1);
    hashes[blocks / 2] = hash;
    return std::make_shared<TokenStore>(kManyTokens, 2, hashes,
                                        std::vector<std::vector<std::byte>>());
  };
  const WindowSet one(store(1), 1000), same(store(1), 1000), other(store(2), 1000);
  EXPECT_EQ(one.fingerprint(), same.fingerprint());
  EXPECT_NE(one.fingerprint(), other.fingerprint());
  const size_t count = one.size() - 1;
  EXPECT_NE(one.slice(0, count).fingerprint(), one.slice(1, count).fingerprint());
  EXPECT_NE(one.slice(0, count).fingerprint(), one.fingerprint());
}

TEST(WindowsAhead, GivesWhatIsAskedForWhateverWasAnnounced) {
  const WindowSet windows(counted(100, 0), 5);
  WindowsAhead ahead(windows);
  const auto expect_batch = [&](const std::vector<int64_t>& which) {
    const Tensor batch = ahead.take(which);
    ASSERT_EQ(batch.shape(), Shape({std::ssize(which), 5}));
    for (int64_t i = 0; i < batch.count(); ++i)
      EXPECT_EQ(batch.data<int64_t>()[i], which[static_cast<size_t>(i / 5)] * 5 + i % 5);
  };
  expect_batch({3, 1});
  ahead.announce({7, 2});
  ahead.announce({4});
  expect_batch({7, 2});
  ahead.announce({9});
  ahead.announce({10});
  expect_batch({4});
  expect_batch({10});
  expect_batch({9});
}

TEST(WindowsAhead, AnErrorOfReadingComesWithTheBatch) {
  const test::ScratchFolder scratch;
  const fs::path path = scratch.path() / "x.tokens";
  TokenWriter writer(10, path);
  writer.append(TokenIds(100, 3));
  std::vector<uint64_t> hashes(1);
  ASSERT_TRUE(writer.keep([&](std::span<const std::byte> bytes) {
    std::memcpy(hashes.data(), bytes.data(), bytes.size());
    return std::string();
  }));
  const WindowSet windows(
      std::make_shared<TokenStore>(100, 2, hashes, std::make_shared<const OpenFile>(path)), 10);
  std::fstream(path, std::ios::in | std::ios::out).put('\x7f');
  WindowsAhead ahead(windows);
  ahead.announce({1});
  test::expect_error([&] { ahead.take({1}); }, {"x.tokens: damaged"});
}

}  // namespace
}  // namespace dofla
