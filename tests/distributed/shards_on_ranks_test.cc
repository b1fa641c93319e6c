// How ranks divide tensors, and what they make of them together.
#include <algorithm>

#include <gtest/gtest.h>

#include "dofla/core/error.h"
#include "dofla/distributed/shards.h"
#include "tests/distributed/ranks.h"

namespace dofla {
namespace {

constexpr int64_t kBlock = Shards::kBlock;
// Tensors of no element, of less than a block and of many parcels, and small ones between them.
const std::vector<int64_t> kCounts = {3, 0, 300 * kBlock + 5, 5, kBlock, 2600 * kBlock - 1, 1};

std::vector<Tensor> tensors_of_rank(int rank) {
  std::vector<Tensor> tensors;
  for (const int64_t count : kCounts)
    std::ranges::copy(numbers<float>(count, rank),
                      tensors.emplace_back(Shape{count}).data<float>());
  return tensors;
}

std::vector<float> values(const Tensor& tensor) {
  return {tensor.data<float>(), tensor.data<float>() + tensor.count()};
}

TEST(ShardsOnRanks, EveryElementHasOneHolder) {
  const Shards shards(group, kCounts);
  std::vector<std::vector<int>> holders;
  for (const int64_t count : kCounts) holders.emplace_back(static_cast<size_t>(count));
  int64_t least = 1 << 30, most = 0;
  for (int rank = 0; rank < group.size(); ++rank) {
    int64_t held = 0;
    for (const Shard& shard : shards.of(rank)) {
      EXPECT_EQ(shard.begin % kBlock, 0);
      EXPECT_GT(shard.count(), 0);
      for (int64_t i = shard.begin; i < shard.end; ++i)
        ++holders[shard.tensor][static_cast<size_t>(i)];
      held += shard.count();
    }
    least = std::min(least, held);
    most = std::max(most, held);
  }
  for (const std::vector<int>& tensor : holders)
    EXPECT_EQ(std::ranges::count(tensor, 1), std::ssize(tensor));
  // At most a block for each of the 12 parcels of 256 blocks, of which one has the short tensors.
  EXPECT_LE(most - least, group.alone() ? 0 : 13 * kBlock);
  if (!group.alone()) return;
  // Whole tensors.
  EXPECT_EQ(std::ssize(shards.own()), std::ssize(kCounts) - 1);
  for (const Shard& shard : shards.own()) EXPECT_EQ(shard.count(), kCounts[shard.tensor]);
}

TEST(ShardsOnRanks, SumsAreThoseOfTheGroup) {
  const Shards shards(group, kCounts);
  const std::vector<Tensor> tensors = tensors_of_rank(group.rank());
  shards.sum(tensors);
  std::vector<std::vector<float>> expected, sums;
  for (const int64_t count : kCounts) {
    expected.push_back(numbers<float>(count, group.rank()));
    sums.push_back(sum_in_order<float>(count));
  }
  for (const Shard& shard : shards.own())
    std::copy_n(sums[shard.tensor].begin() + shard.begin, shard.count(),
                expected[shard.tensor].begin() + shard.begin);
  for (size_t i = 0; i < tensors.size(); ++i) EXPECT_EQ(values(tensors[i]), expected[i]) << i;
}

// Tensors that are made one after the other: each is sent when it is complete, and not before.
TEST(ShardsOnRanks, SumsAreMadeWhileTensorsAre) {
  if (group.alone()) return;
  const Shards shards(group, kCounts);
  const std::vector<Tensor> expected = tensors_of_rank(group.rank());
  shards.sum(expected);
  const std::vector<int64_t> layers = {2, 2, 1, -1, 0, 0, -1};
  std::vector<Tensor> tensors;
  for (const int64_t count : kCounts) tensors.push_back(Tensor::zeros({count}));
  const std::vector<Tensor> made = tensors_of_rank(group.rank());
  ShardedSum sum(shards, tensors, layers);
  for (int64_t layer = 2; layer >= -1; --layer) {
    for (size_t i = 0; i < tensors.size(); ++i)
      if (layers[i] == layer) tensors[i].assign(made[i]);
    // A rank that has made nothing sends zeros, or what it has, at the end.
    if (layer >= 0 && group.rank() != group.size() - 1) sum.finished(layer);
  }
  sum.finish();
  for (const Shard& shard : shards.own())
    EXPECT_EQ(values(shard.of(tensors)), values(shard.of(expected)));
}

TEST(ShardsOnRanks, EveryShardComesFromItsHolder) {
  const Shards shards(group, kCounts);
  std::vector<Tensor> tensors;
  for (const int64_t count : kCounts) tensors.push_back(Tensor::zeros({count}));
  const std::vector<Tensor> expected = tensors_of_rank(7);
  for (const Shard& shard : shards.own()) shard.of(tensors).assign(shard.of(expected));
  shards.gather(tensors);
  for (size_t i = 0; i < tensors.size(); ++i)
    EXPECT_EQ(values(tensors[i]), values(expected[i])) << i;
}

// On the ranks' GPUs, whether these are connected or not; one may have to do for all.
TEST(ShardsOnRanks, TensorsOnGpusHaveTheBitsOfTheCpu) {
  Device gpu;
  try {
    gpu = Device::cuda(group.local_rank());
  } catch (const Error& error) {
    GTEST_SKIP() << error.what();
  }
  group.connect(gpu);
  std::vector<Tensor> expected = tensors_of_rank(group.rank()), tensors, again;
  for (const Tensor& tensor : expected) {
    tensors.push_back(tensor.to(gpu));
    again.push_back(tensor.to(gpu));
  }
  group.sum(expected);
  group.sum(tensors);
  const Shards shards(group, kCounts, gpu);
  shards.sum(again);
  shards.gather(again);
  for (size_t i = 0; i < expected.size(); ++i) {
    EXPECT_EQ(values(tensors[i].to(Device())), values(expected[i])) << i;
    EXPECT_EQ(values(again[i].to(Device())), values(expected[i])) << i;
  }
  group.connect(Device());  // the other tests are of the CPU
}

TEST(ShardsOnRanks, NumbersOfBlocksComeInTheirOrder) {
  const Shards shards(group, kCounts);
  const auto number = [](size_t tensor, int64_t block) {
    return static_cast<double>(1000000 * tensor) + static_cast<double>(block);
  };
  std::vector<double> own;
  for (const Shard& shard : shards.own())
    for (int64_t at = shard.begin; at < shard.end; at += kBlock)
      own.push_back(number(shard.tensor, at / kBlock));
  const std::vector<std::vector<double>> all = shards.gather_blocks(own);
  ASSERT_EQ(all.size(), kCounts.size());
  for (size_t i = 0; i < all.size(); ++i) {
    EXPECT_EQ(std::ssize(all[i]), (kCounts[i] + kBlock - 1) / kBlock);
    for (size_t block = 0; block < all[i].size(); ++block)
      EXPECT_EQ(all[i][block], number(i, static_cast<int64_t>(block)));
  }
}

// A number for every element, and for every 64.
TEST(ShardsOnRanks, TheFirstPutsTensorsTogether) {
  const Shards shards(group, kCounts);
  for (const int64_t each : {1, 64}) {
    std::vector<Tensor> held;
    for (const Shard& shard : shards.own()) {
      held.emplace_back(Shape{(shard.count() + each - 1) / each}, DType::kI8);
      for (int64_t i = 0; i < held.back().count(); ++i)
        held.back().data<int8_t>()[i] = static_cast<int8_t>((shard.begin / each + i) % 101);
    }
    for (size_t i = 0; i < kCounts.size(); ++i) {
      const Tensor whole = shards.whole(i, held, DType::kI8, each);
      ASSERT_EQ(whole.defined(), group.is_first());
      if (!group.is_first()) continue;
      ASSERT_EQ(whole.shape(), Shape{(kCounts[i] + each - 1) / each});
      for (int64_t at = 0; at < whole.count(); ++at)
        ASSERT_EQ(std::as_const(whole).data<int8_t>()[at], at % 101) << i;
    }
  }
}

}  // namespace
}  // namespace dofla
