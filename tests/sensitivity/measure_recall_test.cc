#include "dofla/sensitivity/measure_recall.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <set>

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

// KL(teacher ‖ other) of the repeats alone: of the logits in front of them, which are at the end.
double repeats_lost(const Transformer& teacher, const Transformer& other,
                    const std::vector<TokenIds>& windows) {
  const int64_t last = repeated_at_end(std::ssize(windows.front()));
  double sum = 0;
  for (const TokenIds& window : windows) {
    const auto own = log_probabilities(teacher, window), said = log_probabilities(other, window);
    for (size_t t = window.size() - 1 - static_cast<size_t>(last); t + 1 < window.size(); ++t)
      for (size_t id = 0; id < own[t].size(); ++id)
        sum += std::exp(own[t][id]) * (own[t][id] - said[t][id]);
  }
  return sum / static_cast<double>(std::ssize(windows) * last);
}

// From plans of 12 keys, in one layer of 16 in a head, to all keys: every step of the order is the
// best one, and saves what models with and without it tell.
TEST_F(MeasureRecall, EveryHeadSavesWhatModelsWithAndWithoutItsKeysTell) {
  const std::vector<TokenIds> text = windows(2);
  const std::vector<TokenIds> repeats = {recall_window(text[0], 0), recall_window(text[1], 1)};
  const int64_t layers = teacher.config().layers, key_heads = teacher.config().kv_heads;
  FeatureSet keys = exact_keys_alone(layers, {.keys = 12, .sinks = 2, .recent = 2, .block = 4});
  keys.exact[1].head_keys.assign(static_cast<size_t>(key_heads), 12);
  keys.exact[1].head_keys[0] = keys.exact[1].keys = 16;
  Transformer measured(checkpoint);
  const RecallOrder order = measure_recall(measured, to_batch(repeats), keys.exact);
  ASSERT_EQ(std::ssize(order.steps), layers * key_heads);
  for (const RecallOrder::Step& step : order.steps)
    EXPECT_EQ(step.keys, step.layer == 1 && step.head == 0 ? 16 : 12);
  const auto give_all = [&](FeatureSet set, int64_t layer, int64_t head) {
    ExactKeys& exact = set.exact[static_cast<size_t>(layer)];
    if (exact.head_keys.empty()) exact.head_keys.assign(static_cast<size_t>(key_heads), 12);
    exact.head_keys[static_cast<size_t>(head)] = exact.keys = 48;
    return set;
  };
  const auto lost_by = [&](const FeatureSet& set) {
    return repeats_lost(teacher, make_linear_model(checkpoint, set), repeats);
  };
  // When a logit moves by at most δ, the divergence moves by δ Σ|q − p| ≤ δ √(2 KL) (Pinsker).
  constexpr double kEps = std::numeric_limits<float>::epsilon();
  const double moved =
      static_cast<double>(checkpoint.config().width) * kEps * largest_logit(teacher, repeats[0]);
  double lost = lost_by(keys);
  const double rounding = 2 * moved * std::sqrt(2 * lost);
  EXPECT_NEAR(order.lost, lost, rounding);
  EXPECT_GT(lost, 0.01);
  // The first is the best of all, the second of the eight that saved most beside it.
  std::vector<std::pair<double, int64_t>> first;
  for (int64_t i = 0; i < layers * key_heads; ++i)
    first.emplace_back(lost_by(give_all(keys, i / key_heads, i % key_heads)), i);
  std::ranges::sort(first);
  const auto place = [&](size_t step) {
    return order.steps[step].layer * key_heads + order.steps[step].head;
  };
  const auto of = [&](int64_t i) {
    return std::ranges::find(first, i, &std::pair<double, int64_t>::second)->first;
  };
  EXPECT_NEAR(of(place(0)), first[0].first, rounding);
  EXPECT_NEAR(order.steps[0].saved, lost - of(place(0)), rounding);
  keys = give_all(keys, order.steps[0].layer, order.steps[0].head);
  lost = of(place(0));
  double best = lost;
  for (size_t i = 1; i <= 8; ++i)
    best = std::min(
        best, lost_by(give_all(keys, first[i].second / key_heads, first[i].second % key_heads)));
  keys = give_all(keys, order.steps[1].layer, order.steps[1].head);
  EXPECT_NEAR(lost_by(keys), best, rounding);
  EXPECT_NEAR(order.steps[1].saved, lost - best, rounding);
  // Two follow together, and share what they save.
  lost = best;
  for (size_t step : {2, 3}) keys = give_all(keys, order.steps[step].layer, order.steps[step].head);
  EXPECT_NEAR(order.steps[2].saved + order.steps[3].saved, lost - lost_by(keys), rounding);
  EXPECT_GE(order.steps[2].saved, order.steps[3].saved);
  // All together save everything, and each is there once.
  double all = 0;
  std::set<int64_t> seen;
  for (size_t step = 0; step < order.steps.size(); ++step) {
    all += order.steps[step].saved;
    seen.insert(place(step));
  }
  EXPECT_NEAR(all, order.lost, 1e-9);
  EXPECT_EQ(std::ssize(seen), layers * key_heads);
  EXPECT_EQ(*seen.rbegin(), layers * key_heads - 1);
  // The model is the teacher again.
  EXPECT_EQ(log_probabilities(measured, repeats[0]), log_probabilities(teacher, repeats[0]));
}

TEST_F(MeasureRecall, RecallIsMeasuredWhereAMemoryIsSpentUnlessToldNotTo) {
  SensitivityOptions options = {.ladder = {2, 6}, .steps = 0, .windows = 1};
  EXPECT_TRUE(measure_sensitivity(checkpoint, windows(2), options).recall.steps.empty());
  options.recall_windows = 1;
  EXPECT_THROW(measure_sensitivity(checkpoint, windows(2), options), std::invalid_argument);
  options.memory = 100'000;
  options.exact = {.sinks = 2, .recent = 2, .block = 4};
  const SensitivityTable one = measure_sensitivity(checkpoint, windows(2), options);
  EXPECT_EQ(one.recall.windows, 1);
  options.recall_windows = 0;
  const SensitivityTable none = measure_sensitivity(checkpoint, windows(2), options);
  EXPECT_TRUE(none.recall.steps.empty());
  EXPECT_EQ(none.layers, one.layers);
  // A short text is asked again from its beginning.
  options.recall_windows = 3;
  EXPECT_EQ(measure_sensitivity(checkpoint, windows(2), options).recall.windows, 3);
}

}  // namespace
}  // namespace dofla
