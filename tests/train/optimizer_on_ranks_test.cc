// Ranks that share the moments of one optimizer take the steps that one process takes.
#include <gtest/gtest.h>

#include "dofla/train/optimizer.h"
#include "tests/distributed/ranks.h"
#include "tests/support/fixtures.h"
#include "tests/support/random_values.h"

namespace dofla {
namespace {

constexpr OptimizerOptions kOptions = {.weight_decay = 0.1, .feature_rate = 3, .clip = 0.5};
constexpr OptimizerOptions kSmall = {
    .weight_decay = 0.1, .clip = 0.5, .moments = MomentType::kBFloat16, .seed = 3};

NamedTensors random_tensors(uint64_t seed) {
  Random random(seed);
  return {{"matrix", test::normal_tensor({700, 1900}, random)},
          {"bias", test::normal_tensor({70}, random)},
          {"linear_attention.0.z", test::normal_tensor({3, 4096}, random)}};
}

NamedTensors gradients_of(int step, int rank) {
  return random_tensors(static_cast<uint64_t>(100 * (step + 1) + rank));
}

// What the ranks have together, added up in their order.
NamedTensors summed_gradients(int step) {
  NamedTensors sum = gradients_of(step, 0);
  for (int rank = 1; rank < group.size(); ++rank) {
    const NamedTensors more = gradients_of(step, rank);
    for (size_t i = 0; i < sum.size(); ++i)
      for (int64_t at = 0; at < sum[i].second.count(); ++at)
        sum[i].second.data<float>()[at] += more[i].second.data<float>()[at];
  }
  return sum;
}

void expect_same_bits(const NamedTensors& found, const NamedTensors& expected) {
  ASSERT_EQ(found.size(), expected.size());
  for (size_t i = 0; i < found.size(); ++i) {
    EXPECT_EQ(found[i].first, expected[i].first);
    EXPECT_TRUE(test::same_bits(found[i].second, expected[i].second)) << found[i].first;
  }
}

NamedTensors saved(const Optimizer& optimizer) {
  NamedTensors tensors;
  optimizer.save(tensors);
  return tensors;
}

TEST(OptimizerOnRanks, TakesTheStepsOfOneProcess) {
  for (const OptimizerOptions& options : {kOptions, kSmall}) {
    const NamedTensors parameters = random_tensors(1), expected = random_tensors(1);
    Optimizer optimizer(parameters, options, group), alone(expected, options);
    for (int step = 0; step < 3; ++step) {
      EXPECT_TRUE(optimizer.step(gradients_of(step, group.rank()), 0.01));
      EXPECT_TRUE(alone.step(summed_gradients(step), 0.01));
      expect_same_bits(parameters, expected);
    }
    const NamedTensors found = saved(optimizer);
    if (group.is_first()) expect_same_bits(found, saved(alone));
  }
}

// The others hold nothing that this rank holds, and all of them everything.
TEST(OptimizerOnRanks, EachHoldsItsShare) {
  const NamedTensors parameters = random_tensors(1);
  const Optimizer optimizer(parameters, kOptions, group);
  double held = 0, all = 0;
  for (const Tensor& shard : optimizer.copy()) held += static_cast<double>(shard.count());
  for (const auto& [name, tensor] : parameters) all += static_cast<double>(tensor.count());
  // Of two parcels, each with shares that differ by a block of 4,096.
  EXPECT_NEAR(held, all / group.size(), 3 * 4096);
  group.sum(std::span(&held, 1));
  EXPECT_EQ(held, all);
}

// Where one rank alone has a gradient that is no number.
TEST(OptimizerOnRanks, SkipsTheSameSteps) {
  const NamedTensors parameters = random_tensors(1);
  Optimizer optimizer(parameters, kOptions, group);
  NamedTensors bad = gradients_of(0, group.rank());
  if (group.rank() == group.size() - 1) bad[0].second.data<float>()[5] = std::nanf("");
  EXPECT_FALSE(optimizer.step(bad, 0.01));
  EXPECT_EQ(optimizer.skipped(), 1);
  expect_same_bits(parameters, random_tensors(1));
}

// What any number of ranks wrote.
TEST(OptimizerOnRanks, GoesOnFromAFileInTheSameBits) {
  const NamedTensors expected = random_tensors(1), resumed = random_tensors(2);
  Optimizer alone(expected, kSmall), optimizer(resumed, kSmall, group);
  alone.step(summed_gradients(0), 0.01);
  const test::ScratchFolder scratch;
  NamedTensors tensors = saved(alone);
  alone.save_copy("best.", alone.copy(), tensors);
  write_safetensors(scratch.path() / "optimizer", tensors);
  const Safetensors file(scratch.path() / "optimizer");
  optimizer.restore(file);
  expect_same_bits(resumed, expected);
  const Optimizer::Copy best = optimizer.restore_copy("best.", file);
  for (int step = 1; step < 3; ++step) {
    optimizer.step(gradients_of(step, group.rank()), 0.01);
    alone.step(summed_gradients(step), 0.01);
  }
  expect_same_bits(resumed, expected);
  const NamedTensors found = saved(optimizer);
  if (group.is_first()) expect_same_bits(found, saved(alone));
  // And back to what was kept.
  optimizer.take(best);
  NamedTensors before;
  for (const auto& [name, tensor] : resumed) before.emplace_back(name, file.tensor(name));
  expect_same_bits(resumed, before);
}

}  // namespace
}  // namespace dofla
