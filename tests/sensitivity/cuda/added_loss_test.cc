// The loss that layers and heads add: the GPU against the CPU, with the same features.
#include "dofla/sensitivity/added_loss.h"

#include "dofla/sensitivity/measure.h"
#include "tests/support/model_on_gpu.h"

namespace dofla {
namespace {

class CudaSensitivity : public test::ModelOnGpu {};

TEST_F(CudaSensitivity, IsThatOfTheCpu) {
  const Checkpoint checkpoint(wiki_mini);
  Transformer here(checkpoint), there(checkpoint, gpu, DType::kF32);
  const Tensor ids = some_ids(here.config(), 2, 128);
  const std::vector<FeatureSet> sets = {pair_features(here, ids, 4), pair_features(here, ids, 24)};
  const std::vector<FeatureSet> on_gpu = {sets[0].to(gpu), sets[1].to(gpu)};
  const double base = mean_loss(here, ids);
  EXPECT_NEAR(mean_loss(there, ids), base, 1e-3 * base);
  const auto on_cpu = loss_added_by_layers(here, sets, ids);
  const auto added = loss_added_by_layers(there, on_gpu, ids);
  for (size_t set = 0; set < sets.size(); ++set)
    for (size_t layer = 0; layer < on_cpu[set].size(); ++layer)
      EXPECT_NEAR(added[set][layer], on_cpu[set][layer], 2e-3 * base) << set << ' ' << layer;
  const auto expected = head_shares(here, sets, ids), found = head_shares(there, on_gpu, ids);
  ASSERT_EQ(found.size(), expected.size());
  for (size_t layer = 0; layer < expected.size(); ++layer)
    for (size_t head = 0; head < expected[layer].size(); ++head)
      for (size_t set = 0; set < sets.size(); ++set)
        EXPECT_NEAR(found[layer][head][set], expected[layer][head][set], 0.03)
            << layer << ' ' << head << ' ' << set;
}

// The whole stage with the weights in BF16, as distill has them.
TEST_F(CudaSensitivity, MeasuresAWholeModel) {
  const Checkpoint checkpoint(wiki_mini);
  std::vector<TokenIds> text(4);
  for (size_t b = 0; b < text.size(); ++b)
    for (int64_t t = 0; t < 128; ++t)
      text[b].push_back((3 + t * t + 131 * static_cast<int64_t>(b)) %
                        checkpoint.config().vocabulary);
  const SensitivityOptions options = {.ladder = {4, 16}, .steps = 3};
  const SensitivityTable found = measure_sensitivity(checkpoint, text, options, gpu);
  const SensitivityTable expected = measure_sensitivity(checkpoint, text, options);
  EXPECT_EQ(found.windows, 4);
  for (size_t layer = 0; layer < expected.layers.size(); ++layer)
    for (size_t i = 0; i < 2; ++i) {
      double sum = 0;
      for (const auto& head : found.heads[layer]) sum += head[i];
      EXPECT_NEAR(sum, found.layers[layer][i], 1e-9);
      EXPECT_NEAR(found.layers[layer][i], expected.layers[layer][i], 0.1) << layer << ' ' << i;
    }
}

}  // namespace
}  // namespace dofla
