#include <algorithm>
#include <cmath>
#include <limits>

#include <gtest/gtest.h>

#include "dofla/linear/linear_model.h"
#include "dofla/sensitivity/measure.h"
#include "dofla/sensitivity/recall_windows.h"

namespace dofla {
namespace {

class MeasureRecall : public testing::Test {
 protected:
  // A trained model with grouped keys.
  const Checkpoint checkpoint{fs::path(DOFLA_SOURCE_DIR) / "tests/models/stories260K"};
  const Transformer teacher{checkpoint};

  static std::vector<TokenIds> windows(int64_t count) {
    std::vector<TokenIds> text;
    for (int64_t b = 0; b < count; ++b) {
      TokenIds& window = text.emplace_back();
      for (int64_t t = 0; t < 48; ++t) window.push_back(3 + (b * 977 + t * 131 * (b + 1)) % 500);
    }
    return text;
  }
};

Tensor logits_of(const Transformer& model, const TokenIds& ids) {  // [T, V]
  return model.logits(
      model.forward(to_tensor(ids)).reshape({std::ssize(ids), model.config().width}));
}

// [T][V], in double precision.
std::vector<std::vector<double>> log_probabilities(const Transformer& model, const TokenIds& ids) {
  const Tensor logits = logits_of(model, ids);
  const int64_t V = logits.size(1);
  std::vector<std::vector<double>> out;
  for (size_t t = 0; t < ids.size(); ++t) {
    const float* row = logits.data<float>() + static_cast<int64_t>(t) * V;
    double sum = 0;
    for (int64_t i = 0; i < V; ++i) sum += std::exp(static_cast<double>(row[i]));
    std::vector<double>& logs = out.emplace_back();
    for (int64_t i = 0; i < V; ++i) logs.push_back(static_cast<double>(row[i]) - std::log(sum));
  }
  return out;
}

double largest_logit(const Transformer& model, const TokenIds& ids) {
  const Tensor logits = logits_of(model, ids);
  const float* all = logits.data<float>();
  double largest = 0;
  for (int64_t i = 0; i < logits.size(0) * logits.size(1); ++i)
    largest = std::max(largest, std::abs(static_cast<double>(all[i])));
  return largest;
}

// What a key head adds to the loss of repeated tokens is that of a model in which it alone lacks
// keys, on the repeats alone.
TEST_F(MeasureRecall, RecallIsThatOfAModelInWhichOneHeadForgets) {
  const std::vector<TokenIds> text = windows(4);
  SensitivityOptions options = {.ladder = {2, 6}, .steps = 0, .windows = 2};
  options.exact = {.keys = 12, .sinks = 2, .recent = 2, .block = 4};
  options.key_ladder = {20};
  options.memory = 100'000;
  const SensitivityTable table = measure_sensitivity(checkpoint, text, options);
  ASSERT_EQ(table.recall_windows, 2);
  ASSERT_EQ(table.recall.size(), table.layers.size());
  constexpr double kEps = std::numeric_limits<float>::epsilon();
  const double largest = largest_logit(teacher, recall_window(text[2], 0));
  double most = 0;
  for (const size_t layer : {0, 3})
    for (int64_t head = 0; head < table.key_heads; ++head) {
      FeatureSet only;
      only.layers.resize(table.layers.size());
      only.exact.resize(table.layers.size());
      only.exact[layer] = table.exact.with_keys(48);
      only.exact[layer].head_keys.assign(static_cast<size_t>(table.key_heads), 48);
      only.exact[layer].head_keys[static_cast<size_t>(head)] = 12;
      const Transformer model = make_linear_model(checkpoint, only);
      double sum = 0;
      for (uint64_t w = 0; w < 2; ++w) {
        const TokenIds window = recall_window(text[2 + w], w);
        // The logits in front of the repeats, which are at the end.
        const auto last = static_cast<size_t>(repeated_at_end(48));
        const auto own = log_probabilities(teacher, window),
                   other = log_probabilities(model, window);
        for (size_t t = window.size() - 1 - last; t + 1 < window.size(); ++t)
          for (size_t id = 0; id < own[t].size(); ++id)
            sum += std::exp(own[t][id]) * (own[t][id] - other[t][id]);
      }
      const double added = sum / static_cast<double>(2 * repeated_at_end(48));
      // When a logit moves by at most δ, the divergence moves by δ Σ|q − p| ≤ δ √(2 KL) (Pinsker).
      const double rounding = static_cast<double>(checkpoint.config().width) * kEps * largest;
      EXPECT_NEAR(table.recall[layer][static_cast<size_t>(head)], added,
                  rounding * std::sqrt(2 * added));
      most = std::max(most, added);
    }
  EXPECT_GT(most, 1e-3);
}

TEST_F(MeasureRecall, RecallIsMeasuredWhereAMemoryIsSpentUnlessToldNotTo) {
  SensitivityOptions options = {.ladder = {2, 6}, .steps = 0, .windows = 1};
  EXPECT_TRUE(measure_sensitivity(checkpoint, windows(2), options).recall.empty());
  options.recall_windows = 1;
  EXPECT_THROW(measure_sensitivity(checkpoint, windows(2), options), std::invalid_argument);
  options.memory = 100'000;
  options.exact = {.sinks = 2, .recent = 2, .block = 4};
  const SensitivityTable one = measure_sensitivity(checkpoint, windows(2), options);
  EXPECT_EQ(one.recall_windows, 1);
  options.recall_windows = 0;
  const SensitivityTable none = measure_sensitivity(checkpoint, windows(2), options);
  EXPECT_TRUE(none.recall.empty());
  EXPECT_EQ(none.layers, one.layers);
  // A short text is asked again from its beginning.
  options.recall_windows = 3;
  EXPECT_EQ(measure_sensitivity(checkpoint, windows(2), options).recall.size(), one.recall.size());
}

}  // namespace
}  // namespace dofla
