#include "dofla/distill/attention_entropy.h"

#include <cmath>

#include <gtest/gtest.h>

#include "dofla/data/batches.h"
#include "dofla/distill/feature_init.h"
#include "dofla/distill/objective.h"
#include "dofla/ops/heads.h"
#include "dofla/plan/allocate.h"
#include "tests/support/fixtures.h"

namespace dofla {
namespace {

class AttentionEntropy : public testing::TestWithParam<const char*> {
 protected:
  // Of the definition: −Σ p log p of every row of every head.
  std::vector<double> by_definition(PairMask mask) const {
    std::vector<double> layers;
    double rows = 0;
    ForwardOptions forward;
    forward.observer = [&](int64_t layer, const Tensor& q, const Tensor& k, const Tensor&) {
      const Tensor queries = contiguous_heads(q), keys = contiguous_heads(k);
      const int64_t heads = q.size(1), tokens = q.size(2), size = q.size(3);
      layers.resize(std::max(layers.size(), static_cast<size_t>(layer) + 1));
      for (int64_t h = 0; h < heads; ++h)
        for (int64_t i = 0; i < tokens; ++i) {
          const int64_t seen = mask == PairMask::kFull ? tokens : i + 1;
          const int64_t key_head = h * k.size(1) / heads;
          std::vector<double> weight;
          double sum = 0;
          for (int64_t j = 0; j < seen; ++j) {
            double score = 0;
            for (int64_t c = 0; c < size; ++c)
              score += double{queries.data<float>()[(h * tokens + i) * size + c]} *
                       keys.data<float>()[(key_head * tokens + j) * size + c];
            weight.push_back(std::exp(score / std::sqrt(static_cast<double>(size))));
            sum += weight.back();
          }
          for (const double w : weight)
            if (w > 0) layers[static_cast<size_t>(layer)] -= w / sum * std::log(w / sum);
        }
      if (layer == 0) rows += static_cast<double>(heads * tokens);
    };
    for (const TokenIds& window : windows) teacher.forward(to_tensor(window), forward);
    for (double& layer : layers) layer /= rows;
    return layers;
  }

  const Checkpoint checkpoint{test::fixtures() / GetParam()};
  const Transformer teacher{checkpoint};
  const std::vector<TokenIds> windows = {{1, 5, 2, 9, 9, 3, 7, 4, 4, 8, 2, 6},
                                         {3, 3, 8, 1, 0, 2, 5, 7, 6, 4, 9, 1}};
};

TEST_P(AttentionEntropy, IsThatOfTheDefinition) {
  for (const PairMask mask : {PairMask::kCausal, PairMask::kFull}) {
    const std::vector<double> found = attention_entropy(teacher, windows, mask);
    const std::vector<double> expected = by_definition(mask);
    ASSERT_EQ(found.size(), expected.size());
    for (size_t layer = 0; layer < found.size(); ++layer)
      EXPECT_NEAR(found[layer], expected[layer], 1e-9) << layer;
  }
}

// A cross-entropy is an entropy and a divergence, which is never negative.
TEST_P(AttentionEntropy, NoFeaturesHaveASmallerLoss) {
  const std::vector<double> floor = attention_entropy(teacher, windows, PairMask::kCausal);
  const FeatureSet features = init_features(fixed_plan(identity_of(checkpoint.config()), 32), {});
  Tensor ids({2, 12}, DType::kI64);
  for (size_t b = 0; b < 2; ++b)
    std::copy(windows[b].begin(), windows[b].end(), ids.data<int64_t>() + 12 * b);
  layerwise_objective(teacher, {}).run(ids, features, [&](int64_t layer, const FeatureLoss& loss) {
    const double mean = loss.total() / static_cast<double>(loss.per_head.count());
    EXPECT_GT(mean, floor[static_cast<size_t>(layer)] - 1e-6) << layer;
  });
}

INSTANTIATE_TEST_SUITE_P(Families, AttentionEntropy, testing::Values("gpt2", "llama"));

}  // namespace
}  // namespace dofla
