#include "dofla/core/host_memory.h"

#include <limits>
#include <new>
#include <vector>

#include <gtest/gtest.h>

#include "dofla/core/parallel.h"

namespace dofla {
namespace {

constexpr size_t kMiB = size_t{1} << 20;

TEST(HostMemory, WhatComesBackServesTheNextOfAboutItsSize) {
  HostMemory memory;
  const void* first = memory.allocate(6 * kMiB).get();  // given back at once
  EXPECT_EQ(memory.kept(), 6 * kMiB);
  EXPECT_EQ(memory.allocate(6 * kMiB).get(), first);
  EXPECT_EQ(memory.allocate(4 * kMiB).get(), first) << "a third of it may stay unused";

  const auto large = memory.allocate(6 * kMiB);
  EXPECT_EQ(large.get(), first);
  EXPECT_EQ(memory.kept(), 0u);
  EXPECT_NE(memory.allocate(6 * kMiB).get(), first) << "one block for two tensors";
}

TEST(HostMemory, BlocksThatAreTooSmallOrMuchTooLargeStay) {
  HostMemory memory;
  const void* first = memory.allocate(6 * kMiB).get();
  EXPECT_NE(memory.allocate(4 * kMiB - 1).get(), first);
  EXPECT_NE(memory.allocate(6 * kMiB + 1).get(), first);
}

TEST(HostMemory, TheSmallestThatFitsIsTaken) {
  HostMemory memory;
  auto nine = memory.allocate(9 * kMiB), seven = memory.allocate(7 * kMiB),
       eight = memory.allocate(8 * kMiB);
  const void* smallest = seven.get();
  nine.reset();
  seven.reset();
  eight.reset();
  EXPECT_EQ(memory.allocate(6 * kMiB).get(), smallest);
}

// Sizes that never fit each other: without a bound every one of them would stay.
TEST(HostMemory, NoMoreIsHeldThanAQuarterAboveWhatWasUsed) {
  HostMemory memory;
  size_t most = 0;
  for (size_t size = 64 * kMiB; size >= kMiB; size /= 2) {
    most = std::max(most, size);
    const auto block = memory.allocate(size);
    EXPECT_LE(size + memory.kept(), most + most / 4) << size;
  }
}

TEST(HostMemory, WhatHasBeenKeptForLongestGoesFirst) {
  HostMemory memory;
  memory.allocate(64 * kMiB);
  const void* second = memory.allocate(12 * kMiB).get();
  memory.allocate(20 * kMiB);  // with both of the others more than 80 MiB
  EXPECT_EQ(memory.kept(), 32 * kMiB);
  EXPECT_EQ(memory.allocate(12 * kMiB).get(), second);
}

TEST(HostMemory, WhatTheSystemDoesNotHaveIsSaidAndChangesNothing) {
  HostMemory memory;
  memory.allocate(6 * kMiB);
  EXPECT_THROW(memory.allocate(std::numeric_limits<size_t>::max() / 2), std::bad_alloc);
  // The failed request raised no bound: two tensors of other sizes do not both stay.
  memory.allocate(12 * kMiB);
  memory.allocate(24 * kMiB);
  EXPECT_LE(memory.kept(), 24 * kMiB + 6 * kMiB);
}

TEST(HostMemory, ThreadsGetBlocksOfTheirOwn) {
  HostMemory memory;
  parallel_for(64, [&](int64_t i) {
    const auto block = memory.allocate(kMiB + static_cast<size_t>(i) * 4096);
    auto* bytes = static_cast<unsigned char*>(block.get());
    for (size_t at = 0; at < kMiB; at += 4096) bytes[at] = static_cast<unsigned char>(i);
    for (size_t at = 0; at < kMiB; at += 4096) ASSERT_EQ(bytes[at], static_cast<unsigned char>(i));
  });
}

}  // namespace
}  // namespace dofla
