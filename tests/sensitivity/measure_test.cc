#include "dofla/sensitivity/measure.h"

#include <cmath>
#include <cstring>

#include <gtest/gtest.h>

#include "dofla/core/error.h"
#include "dofla/distill/pair_init.h"
#include "dofla/evaluate/next_token.h"
#include "dofla/fidelity/compare.h"
#include "dofla/fidelity/divergence.h"
#include "dofla/generate/generate.h"
#include "dofla/linear/linear_model.h"
#include "dofla/model/softmax_attention.h"
#include "dofla/ops/linear_attention.h"
#include "dofla/plan/allocate.h"
#include "dofla/sensitivity/added_loss.h"
#include "dofla/sensitivity/side_by_side.h"
#include "tests/support/expect_error.h"

namespace dofla {
namespace {

// Softmax attention with one head that is linear.
class OneLinearHead : public SoftmaxAttention {
 public:
  OneLinearHead(const ModelConfig& config, Features features, int64_t head)
      : SoftmaxAttention(config), features_(std::move(features)), head_(head) {}

  Tensor forward(const Heads& heads, const Past& past, AttentionTape* tape) const override {
    Tensor out = SoftmaxAttention::forward(heads, past, tape);
    const Tensor linear = linear_attention(heads.q, heads.k, heads.v, features_);
    const int64_t H = out.size(2), D = out.size(3);
    for (int64_t row = 0; row < out.count() / (H * D); ++row)
      std::copy_n(linear.data<float>() + (row * H + head_) * D, D,
                  out.data<float>() + (row * H + head_) * D);
    return out;
  }

 private:
  Features features_;
  int64_t head_;
};

class Sensitivity : public testing::Test {
 protected:
  // A trained model with grouped keys.
  const Checkpoint checkpoint{fs::path(DOFLA_SOURCE_DIR) / "tests/models/stories260K"};
  Transformer teacher{checkpoint};

  static std::vector<TokenIds> windows(int64_t count, int64_t length = 48) {
    std::vector<TokenIds> text;
    for (int64_t b = 0; b < count; ++b) {
      TokenIds& window = text.emplace_back();
      for (int64_t t = 0; t < length; ++t)
        window.push_back(3 + (b * 977 + t * 131 * (b + 1)) % 500);
    }
    return text;
  }
  static Tensor batch(const std::vector<TokenIds>& text) {
    const auto count = static_cast<int64_t>(text.size());
    const auto length = static_cast<int64_t>(text.front().size());
    Tensor ids({count, length}, DType::kI64);
    for (int64_t b = 0; b < count; ++b)
      std::copy_n(text[static_cast<size_t>(b)].data(), length, ids.data<int64_t>() + b * length);
    return ids;
  }
  FeatureSet features(int64_t count, uint64_t seed = 7) const {
    PairSampler pairs(fixed_plan(identity_of(teacher.config()), count), 1, seed);
    teacher.forward(to_tensor(windows(1).front()),
                    {.state = nullptr, .observer = pairs.observer()});
    return pairs.features();
  }
};

double kl_of(const Transformer& teacher, const Transformer& student,
             const std::vector<TokenIds>& text) {
  return divergence_of(compare(teacher, {&student}, each_of(text)).front().windows).kl;
}

TEST_F(Sensitivity, SideBySideIsWhatEachIsAlone) {
  const Tensor first = batch(windows(2)), second = batch(windows(3));
  const TrainOptions options = {.steps = 2};
  SideBySide together(teacher, {features(3), features(9)}, {}, options);
  together.step(first);
  together.step(second);
  const int64_t sizes[] = {3, 9};
  for (size_t set = 0; set < 2; ++set) {
    FeatureTrainer alone(features(sizes[set]), layerwise_objective(teacher, {}), options);
    alone.step(first);
    alone.step(second);
    const FeatureTrainer& beside = together.trainer(set);
    EXPECT_EQ(beside.history().loss, alone.history().loss);
    for (size_t layer = 0; layer < alone.features().layers.size(); ++layer) {
      const Tensor &a = alone.features().layers[layer].z, &b = beside.features().layers[layer].z;
      EXPECT_EQ(std::memcmp(a.raw(), b.raw(), static_cast<size_t>(a.bytes())), 0) << layer;
    }
  }
}

TEST_F(Sensitivity, OfALayerIsThatOfAModelWithOnlyThatLayerLinear) {
  const std::vector<TokenIds> text = windows(3);
  const double base = evaluate_next_token(teacher, each_of(text)).loss;
  EXPECT_NEAR(mean_loss(teacher, batch(text)), base, 1e-5 * base);
  const Transformer alone(checkpoint);
  FeatureSet set = features(5);
  set.layers[2] = {};
  const std::vector<double> added = loss_added_by_layers(teacher, {set}, batch(text)).front();
  for (size_t layer = 0; layer < set.layers.size(); ++layer) {
    FeatureSet only = set.clone();
    for (size_t other = 0; other < set.layers.size(); ++other)
      if (other != layer) only.layers[other] = {};
    if (layer == 2) {
      EXPECT_EQ(added[layer], 0);
      continue;
    }
    const Transformer model = make_linear_model(checkpoint, only);
    EXPECT_NEAR(added[layer], kl_of(alone, model, text), 1e-4 * added[layer]);
  }
  EXPECT_EQ(mean_loss(teacher, batch(text)), mean_loss(Transformer(checkpoint), batch(text)));
}

// Shares by one backward against the loss that each head alone adds, on text that the model is
// calibrated for: its own.
TEST_F(Sensitivity, SharesOfHeadsFollowWhatEachHeadAdds) {
  std::vector<TokenIds> text;
  for (uint64_t seed = 0; seed < 12; ++seed) {
    const GenerateOptions options = {
        .max_tokens = 95,
        .stop_at_end_of_text = false,
        .sampler = {.temperature = 1, .top_k = 0, .top_p = 1, .seed = seed}};
    text.push_back({1});
    for (const int64_t id : generate(teacher, {1}, options).ids) text.back().push_back(id);
  }
  const Tensor ids = batch(text);
  const double base = mean_loss(teacher, ids);
  const std::vector<FeatureSet> sets = {features(2), features(12)};
  const auto shares = head_shares(teacher, sets, ids);
  const int64_t layers = teacher.config().layers, heads = teacher.config().heads;
  ASSERT_EQ(static_cast<int64_t>(shares.size()), layers);
  double products = 0, squares = 0, estimates = 0;
  for (int64_t layer = 0; layer < layers; ++layer) {
    const auto& of_layer = shares[static_cast<size_t>(layer)];
    ASSERT_EQ(static_cast<int64_t>(of_layer.size()), heads);
    std::vector<double> added;
    double sum = 0, shared = 0;
    for (int64_t head = 0; head < heads; ++head) {
      auto one = std::make_unique<OneLinearHead>(teacher.config(),
                                                 sets[0].layers[static_cast<size_t>(layer)], head);
      std::unique_ptr<Attention> own = teacher.exchange_attention(layer, std::move(one));
      added.push_back(mean_loss(teacher, ids) - base);
      teacher.exchange_attention(layer, std::move(own));
      sum += std::abs(added.back());
      shared += of_layer[static_cast<size_t>(head)][0];
    }
    EXPECT_NEAR(shared, 1, 1e-12);
    for (size_t head = 0; head < added.size(); ++head) {
      const double x = added[head] / sum - 1.0 / static_cast<double>(heads);
      const double y = of_layer[head][0] - 1.0 / static_cast<double>(heads);
      products += x * y, squares += x * x, estimates += y * y;
    }
  }
  EXPECT_GT(products / std::sqrt(squares * estimates), 0.5);
}

TEST_F(Sensitivity, HeadsAddUpToTheirLayerAndTheSameSeedGivesTheSame) {
  const SensitivityOptions options = {.ladder = {2, 6}, .steps = 2, .windows = 3, .seed = 5};
  const SensitivityTable table = measure_sensitivity(checkpoint, windows(6), options);
  EXPECT_EQ(table.ladder, options.ladder);
  EXPECT_EQ(table.windows, 3);
  EXPECT_EQ(table.length, 48);
  EXPECT_NEAR(table.teacher_loss, mean_loss(teacher, batch(windows(3))), 1e-12);
  for (size_t layer = 0; layer < table.layers.size(); ++layer)
    for (size_t i = 0; i < 2; ++i) {
      double sum = 0;
      for (const SensitivityTable::Curve& head : table.heads[layer]) sum += head[i];
      EXPECT_NEAR(sum, table.layers[layer][i], 1e-9);
    }
  EXPECT_EQ(to_json(measure_sensitivity(checkpoint, windows(6), options)), to_json(table));
  SensitivityOptions other = options;
  other.seed = 6;
  EXPECT_NE(measure_sensitivity(checkpoint, windows(6), other).layers, table.layers);
}

TEST_F(Sensitivity, OfACacheIsThatOfAModelWithOnlyThatCache) {
  const std::vector<TokenIds> text = windows(3);
  SensitivityOptions options = {.ladder = {2, 6}, .steps = 0, .windows = 2};
  options.exact = {.keys = 12, .sinks = 2, .recent = 2, .block = 4};
  options.key_ladder = {8, 20};
  const SensitivityTable table = measure_sensitivity(checkpoint, text, options);
  const std::vector<TokenIds> first = {text[0], text[1]};
  for (size_t layer = 0; layer < table.layers.size(); ++layer)
    for (size_t i = 0; i < 2; ++i) {
      FeatureSet only;
      only.layers.resize(table.layers.size());
      only.exact.resize(table.layers.size());
      only.exact[layer] = options.exact;
      only.exact[layer].keys = options.key_ladder[i];
      const Transformer model = make_linear_model(checkpoint, only);
      const double added = kl_of(teacher, model, first);
      EXPECT_NEAR(table.keys[layer][i], added, 1e-4 * added);
    }
}

// The keys that features are measured beside and those of the ladder follow from the memory.
TEST_F(Sensitivity, MemoryDecidesTheKeys) {
  const ExactKeys kind = {.sinks = 2, .recent = 2, .block = 4};
  const ModelConfig& config = teacher.config();
  const int64_t key = config.kv_heads * exact_key_bytes(1, config.head_size);
  const int64_t features = 16 * config.kv_heads * linear_state_bytes(1, config.head_size);
  SensitivityOptions options = {.steps = 0, .windows = 1, .exact = kind};
  options.memory = config.layers * (20 * key + features);
  const SensitivityTable table = measure_sensitivity(checkpoint, windows(2), options);
  EXPECT_EQ(table.exact.keys, 20);
  EXPECT_EQ(table.key_heads, config.kv_heads);
  EXPECT_EQ(table.key_ladder, (std::vector<int64_t>{8, 10, 20, 40, 47}));
  EXPECT_EQ(table.ladder, (std::vector<int64_t>{1, 4, 16, 64}));
  options.memory = config.layers * (400 * key + features);  // more than a window has
  EXPECT_EQ(measure_sensitivity(checkpoint, windows(2), options).exact.keys, 24);
  options.memory = 1000;
  test::expect_error([&] { measure_sensitivity(checkpoint, windows(2), options); },
                     {"1.0 kB a sequence is too little", "are needed at least"});
  options.memory = 1'000'000;
  test::expect_error(
      [&] { measure_sensitivity(checkpoint, windows(2, 8), options); },
      {"windows of 8 tokens leave nothing to features beside the fewest exact keys, 8"});
}

TEST_F(Sensitivity, KeyLadderIsAroundTheKeys) {
  const ExactKeys kind;  // at least 24 keys
  EXPECT_EQ(key_ladder_around(128, kind, 1024), (std::vector<int64_t>{32, 64, 128, 256, 512}));
  EXPECT_EQ(key_ladder_around(30, kind, 64), (std::vector<int64_t>{24, 30, 60, 63}));
  EXPECT_EQ(key_ladder_around(5000, kind, 64), (std::vector<int64_t>{63}));
}

TEST_F(Sensitivity, LadderIsAroundTheCost) {
  EXPECT_EQ(ladder_around(64), (std::vector<int64_t>{4, 16, 64, 256}));
  EXPECT_EQ(ladder_around(1), (std::vector<int64_t>{1, 4}));
  EXPECT_EQ(ladder_around(DimensionPlan::kLargestDimension).back(),
            DimensionPlan::kLargestDimension);
}

TEST_F(Sensitivity, RefusesWhatItCannotMeasure) {
  const auto measure = [&](const SensitivityOptions& options) {
    measure_sensitivity(checkpoint, windows(2), options);
  };
  test::expect_error([&] { measure({.windows = 3}); }, {"3 windows, but the training text has 2"});
  EXPECT_THROW(measure({.ladder = {4}}), std::invalid_argument);
  EXPECT_THROW(measure({.ladder = {8, 4}}), std::invalid_argument);
  EXPECT_THROW(measure({.ladder = {0, 4}}), std::invalid_argument);
  EXPECT_THROW(measure({.batch = 0}), std::invalid_argument);
  EXPECT_THROW(measure({.exact = {.keys = 20}, .key_ladder = {20, 48}}), std::invalid_argument);
  EXPECT_THROW(measure({.exact = {.keys = 20}, .key_ladder = {12, 24}}), std::invalid_argument);
  EXPECT_THROW(measure({.key_ladder = {24}}), std::invalid_argument);
}

}  // namespace
}  // namespace dofla
