#include "dofla/train/lora.h"

#include <gtest/gtest.h>

#include "dofla/model/next_token_gradient.h"
#include "tests/support/expect_error.h"
#include "tests/support/fixtures.h"
#include "tests/support/random_values.h"
#include "tests/support/slope.h"
#include "tests/support/tolerance.h"

namespace dofla {
namespace {

constexpr Trained kAttention = {.attention = true};

// Matrices of either layout, fused and not, with biases and with q/k norms.
class LoraGradients : public testing::TestWithParam<std::string> {
 protected:
  LoraGradients() { model.make_trainable(DType::kBF16, kAttention); }

  double loss() const {
    Gradients none;
    return next_token_gradient(model, ids, false, none);
  }

  const fs::path folder = test::fixtures() / GetParam();
  const Checkpoint checkpoint{folder};
  const Tensor ids = Safetensors(folder / "expected.safetensors").tensor("input_ids");
  Transformer model{checkpoint};
};

TEST_P(LoraGradients, AreTheSlopesOfTheLoss) {
  LoraUpdates lora(model, 3, 1);
  NamedTensors factors = lora.factors(parameters(model, kAttention));
  Random random(4);
  for (auto& [name, tensor] : factors)  // B begins with 0, where A has no slope
    if (name.ends_with(".lora_b"))
      for (int64_t i = 0; i < tensor.count(); ++i)
        tensor.data<float>()[i] = static_cast<float>(0.1 * random.normal());
  lora.apply();
  Gradients gradients = new_gradients(model, kAttention);
  next_token_gradient(model, ids, false, gradients);
  const NamedTensors found = lora.gradients(parameters(gradients));
  ASSERT_EQ(found.size(), factors.size());
  const ModelConfig& config = model.config();
  const int64_t longest = std::max({config.width, config.mlp_width, config.vocabulary});
  for (const char* kind : {".lora_a", ".lora_b"}) {
    NamedTensors along, slopes;
    for (size_t i = 0; i < found.size(); ++i) {
      EXPECT_EQ(found[i].first, factors[i].first);
      if (!found[i].first.ends_with(kind)) continue;
      along.push_back(factors[i]);
      slopes.push_back(found[i]);
    }
    const auto moved = [&] {
      lora.apply();
      return loss();
    };
    test::expect_slope(along, slopes, moved, 1e-3,
                       test::float32_tolerance(longest, 12 * config.layers, test::norm_of(slopes)),
                       kind);
  }
}

TEST_P(LoraGradients, TheModelBeginsAsItWas) {
  const double before = loss();
  LoraUpdates lora(model, 2, 1);
  lora.apply();
  EXPECT_EQ(loss(), before);
  const NamedTensors factors = lora.factors(parameters(model, kAttention));
  const auto a = [](const NamedTensors& all) {
    return std::ranges::find_if(all,
                                [](const auto& named) { return named.first.ends_with(".lora_a"); })
        ->second;
  };
  EXPECT_TRUE(test::same_bits(a(factors),
                              a(LoraUpdates(model, 2, 1).factors(parameters(model, kAttention)))));
  EXPECT_FALSE(test::same_bits(a(factors),
                               a(LoraUpdates(model, 2, 7).factors(parameters(model, kAttention)))));
}

TEST_P(LoraGradients, OfARankThatSavesNothingAreRefused) {
  test::expect_error([&] { LoraUpdates(model, 1 << 20, 0); },
                     {"rank 1048576", "less than the sides of"});
}

INSTANTIATE_TEST_SUITE_P(Families, LoraGradients,
                         testing::Values("gpt2", "gpt_neox", "llama", "qwen3"),
                         [](const auto& tested) { return tested.param; });

}  // namespace
}  // namespace dofla
