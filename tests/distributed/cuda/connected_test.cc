// Ranks whose GPUs are connected, on one GPU: messages that a rank sends to itself, and one rank
// that does as several do (DOFLA_NCCL=always) and must end in the bits of a process alone.
#include <cstdlib>

#include "dofla/distill/shared_batch.h"
#include "dofla/distill/train.h"
#include "dofla/distributed/gpu_link.h"
#include "dofla/distributed/shards.h"
#include "dofla/ops/activation.h"
#include "dofla/train/optimizer.h"
#include "tests/support/model_on_gpu.h"
#include "tests/support/random_values.h"

namespace dofla {
namespace {

using transport::Message;

class CudaConnected : public test::ModelOnGpu {
 protected:
  void SetUp() override {
    test::ModelOnGpu::SetUp();
    if (!IsSkipped() && !transport::can_link_gpus()) GTEST_SKIP() << "built without NCCL";
  }

  // A process alone that does as if it were one of several.
  Group as_one_of_several() const {
    setenv("DOFLA_NCCL", "always", 1);
    const Group group = Group::launched();
    unsetenv("DOFLA_NCCL");
    EXPECT_TRUE(group.alone());
    group.connect(gpu);
    EXPECT_EQ(group.size(), 1);
    EXPECT_FALSE(group.alone());
    EXPECT_NE(group.link(gpu), nullptr);
    EXPECT_EQ(group.link(Device()), nullptr);
    return group;
  }

  // Of no element, of less than a block, of more than a parcel, and where none begins at a multiple
  // of 16 bytes.
  std::vector<Tensor> random_tensors(uint64_t seed) const {
    Random random(seed);
    std::vector<Tensor> all;
    for (const int64_t count : {0, 1, 4095, 4097, 9'000'001})
      all.push_back(test::normal_tensor({count + 1}, random).to(gpu).slice(1, count + 1));
    return all;
  }

  static void expect_same_bits(std::span<const Tensor> found, std::span<const Tensor> expected) {
    ASSERT_EQ(found.size(), expected.size());
    for (size_t i = 0; i < found.size(); ++i)
      EXPECT_TRUE(test::same_bits(found[i].to(Device()), expected[i].to(Device()))) << i;
  }

  NamedTensors random_parameters(uint64_t seed) const {
    Random random(seed);
    return {{"matrix", test::normal_tensor({700, 1900}, random).to(gpu)},
            {"bias", test::normal_tensor({70}, random).to(gpu)},
            {"linear_attention.0.z", test::normal_tensor({3, 4096}, random).to(gpu)}};
  }
};

// No work waits for another but by its place in the stream.
TEST_F(CudaConnected, MessagesTakeTheirTurnInTheStream) {
  const transport::GpuLink link(transport::new_link_name(), gpu, 0, 1);
  std::vector<Tensor> from = random_tensors(1), to = random_tensors(2),
                      expected = random_tensors(1);
  for (int round = 0; round < 3; ++round) {
    std::vector<Message> sent, received;
    for (size_t i = 1; i < from.size(); ++i) {
      scale(2, from[i]);
      sent.push_back({0, from[i]});
      received.push_back({0, to[i]});
    }
    link.exchange(sent, received);
    for (size_t i = 1; i < from.size(); ++i) {
      scale(0.5f, from[i]);
      add(from[i], to[i]);  // 3 times what it was
    }
  }
  for (Tensor& tensor : expected)
    for (int round = 0; round < 3; ++round) {
      const Tensor before = tensor.clone();
      scale(2, tensor);
      add(tensor, before);
    }
  expect_same_bits(from, expected);
}

// As ShardedSum does it, of three ranks whose parts all come from this one.
TEST_F(CudaConnected, PartsOfRanksAreSummedInTheirOrder) {
  const transport::GpuLink link(transport::new_link_name(), gpu, 0, 1);
  constexpr int64_t kCount = 1'000'003;
  std::vector<Tensor> ranks;
  std::vector<Message> sent, received;
  Random random(3);
  const Tensor parts({3, kCount}, DType::kF32, gpu);
  for (int64_t rank = 0; rank < 3; ++rank) {
    ranks.push_back(test::normal_tensor({kCount}, random));
    sent.push_back({0, ranks.back().to(gpu)});
    received.push_back({0, parts.slice(rank, rank + 1)});
  }
  link.exchange(sent, received);
  Tensor sum = parts.slice(0, 1);
  for (int64_t rank = 1; rank < 3; ++rank) {
    add(sum, parts.slice(rank, rank + 1));
    add(ranks[0], ranks[static_cast<size_t>(rank)]);
  }
  EXPECT_TRUE(test::same_bits(sum.to(Device()).reshape({kCount}), ranks[0]));
}

TEST_F(CudaConnected, SumsOfOneRankAreItsTensors) {
  const Group group = as_one_of_several();
  std::vector<Tensor> tensors = random_tensors(4);
  const std::vector<Tensor> expected = random_tensors(4);
  group.sum(tensors);
  expect_same_bits(tensors, expected);
  std::vector<int64_t> counts;
  for (const Tensor& tensor : tensors) counts.push_back(tensor.count());
  const Shards shards(group, counts, gpu);
  shards.sum(tensors);
  shards.gather(tensors);
  expect_same_bits(tensors, expected);
  double number = 3;
  group.sum(std::span(&number, 1));
  EXPECT_EQ(number, 3);
  EXPECT_EQ(group.gather("bytes"), std::vector<std::string>{"bytes"});
  group.leave();
}

TEST_F(CudaConnected, OptimizersTakeTheSameSteps) {
  const Group group = as_one_of_several();
  for (const MomentType moments : {MomentType::kFloat32, MomentType::kBFloat16}) {
    const OptimizerOptions options = {
        .weight_decay = 0.1, .feature_rate = 3, .clip = 0.5, .moments = moments, .seed = 3};
    const NamedTensors parameters = random_parameters(1), expected = random_parameters(1);
    const auto copies = [&] {
      std::vector<Tensor> all;
      for (const auto& [name, tensor] : parameters)
        all.emplace_back(tensor.shape(), DType::kBF16, gpu);
      return all;
    };
    const std::vector<Tensor> rounded = copies(), expected_rounded = copies();
    Optimizer optimizer(parameters, options, group, rounded);
    Optimizer alone(expected, options, {}, expected_rounded);
    for (uint64_t step = 0; step < 3; ++step) {
      EXPECT_TRUE(optimizer.step(random_parameters(10 + step), 0.01));
      EXPECT_TRUE(alone.step(random_parameters(10 + step), 0.01));
      expect_same_bits(rounded, expected_rounded);
    }
    NamedTensors saved, expected_saved;
    optimizer.save(saved);
    alone.save(expected_saved);
    ASSERT_EQ(saved.size(), expected_saved.size());
    for (size_t i = 0; i < saved.size(); ++i)
      EXPECT_TRUE(test::same_bits(saved[i].second, expected_saved[i].second)) << saved[i].first;
  }
}

TEST_F(CudaConnected, FeaturesLearnTheSame) {
  const Group group = as_one_of_several();
  const Checkpoint checkpoint(wiki_mini);
  const Transformer teacher(checkpoint, gpu), cpu(checkpoint);
  const Tensor ids = some_ids(cpu.config(), 3, 96);
  const FeatureSet start = pair_features(cpu, ids, 16, FeatureMap::kUntied);
  const auto trainer = [&](const Group& ranks) {
    const Objective objective = layerwise_objective(teacher, FeatureLossOptions{});
    return FeatureTrainer(start.clone().to(gpu), shared_by(ranks, objective), {.steps = 5});
  };
  FeatureTrainer shared = trainer(group), alone = trainer({});
  for (int step = 0; step < 5; ++step) shared.step(ids), alone.step(ids);
  EXPECT_EQ(shared.history().loss, alone.history().loss);
  for (size_t layer = 0; layer < start.layers.size(); ++layer)
    EXPECT_TRUE(test::same_bits(here(shared.features().layers[layer].z),
                                here(alone.features().layers[layer].z)))
        << layer;
}

}  // namespace
}  // namespace dofla
