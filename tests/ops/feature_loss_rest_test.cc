// Losses of rows that hold more than the pairs that features estimate, and of queries that see keys
// by blocks.
#include <cmath>
#include <limits>

#include <gtest/gtest.h>

#include "dofla/ops/feature_loss.h"
#include "tests/reference/attention_case.h"
#include "tests/reference/feature_loss.h"
#include "tests/support/fixtures.h"

namespace dofla {
namespace {

using reference::AttentionCase;
using reference::pair_error;
using reference::to_doubles;

std::string rest_label(const FeatureLossOptions& options) {
  return fmt::format("loss {}, mask {}, block {}", int(options.kind), int(options.mask),
                     options.block);
}

FeatureLoss run(const AttentionCase& c, const FeatureLossOptions& options,
                const std::vector<double>& rest) {
  return feature_loss(c.q_tensor(), c.k_tensor(), c.features(), options,
                      reference::to_tensor(rest, {c.batch, c.heads, c.tokens}));
}

void expect_correct(const AttentionCase& c, const FeatureLossOptions& options,
                    const std::vector<double>& rest) {
  const FeatureLoss actual = run(c, options, rest);
  const auto expected = reference::feature_loss(c, options, rest);
  reference::expect_loss(actual, expected, pair_error(c), rest_label(options));
  reference::expect_gradients(actual, expected, pair_error(c), rest_label(options));
}

// Of `tokens` tokens: tied features of heads that share keys, and untied ones.
std::vector<AttentionCase> cases(int64_t tokens) {
  return {reference::random_case(
              {.batch = 2, .key_heads = 2, .tokens = tokens, .width = 8, .counts = {1, 16, 40, 3}}),
          reference::random_case(
              {.tokens = tokens, .width = 8, .counts = {17, 5}, .group = 3, .key_scale = 2})};
}

TEST(FeatureLossRest, MatchesTheReferenceForEveryBlock) {
  for (const AttentionCase& c : cases(128))
    for (const FeatureLossKind kind : reference::kFeatureLossKinds)
      for (const int64_t block : {1, 16, 64}) {
        const FeatureLossOptions options = {.kind = kind, .block = block};
        expect_correct(c, options, reference::every_rest(c));
        expect_correct(c, options, std::vector<double>(c.q.size() / 8, -HUGE_VAL));
      }
}

TEST(FeatureLossRest, MatchesTheReferenceWithoutAMask) {
  for (const AttentionCase& c : cases(70))
    for (const FeatureLossKind kind : reference::kFeatureLossKinds)
      expect_correct(c, {kind, PairMask::kFull}, reference::every_rest(c));
}

TEST(FeatureLossRest, IsFiniteAndRightOnExtremeKeys) {
  const AttentionCase c =
      reference::fixture_case(test::fixtures() / "features_extreme.safetensors");
  for (const AttentionCase& each : {c, reference::untied_near(c)})
    for (const FeatureLossKind kind : reference::kFeatureLossKinds)
      expect_correct(each, {kind}, reference::every_rest(c));
}

// Where all vectors have the same length, log α can make up for a missing norm term.
TEST(FeatureLossRest, KnowsFeaturesWithoutANorm) {
  constexpr double kLength = 3;
  AttentionCase c = reference::random_case({.tokens = 32, .width = 4, .counts = {9}});
  for (std::vector<double>* x : {&c.q, &c.k})
    for (size_t i = 0; i < x->size(); ++i) (*x)[i] = i % 4 == i / 4 % 3 ? kLength : 0;
  Features features = c.features();
  features.subtract_norm = false;
  for (double& x : c.log_alpha) x += kLength * kLength / 2;  // 2 · |x|²/(2√4)
  const std::vector<double> rest = reference::every_rest(c);
  for (const FeatureLossKind kind : reference::kFeatureLossKinds) {
    const FeatureLoss actual = feature_loss(c.q_tensor(), c.k_tensor(), features, {kind},
                                            reference::to_tensor(rest, {1, 1, 32}));
    const auto expected = reference::feature_loss(c, {kind}, rest);
    reference::expect_loss(actual, expected, pair_error(c), rest_label({kind}));
    reference::expect_gradients(actual, expected, pair_error(c), rest_label({kind}));
  }
}

TEST(FeatureLossRest, PaddingCountsForNothing) {
  const AttentionCase c = cases(64)[0];
  for (const FeatureLossKind kind : reference::kFeatureLossKinds) {
    const FeatureLoss loss = run(c, {kind}, std::vector<double>(c.q.size() / 8, kPaddedRest));
    for (const Tensor& part : {loss.per_head, loss.grad.z, loss.grad.log_alpha})
      for (const double x : to_doubles(part)) EXPECT_EQ(x, 0);
  }
}

TEST(FeatureLossRest, NoneIsTheLossWithoutIt) {
  for (const AttentionCase& c : cases(64))
    for (const FeatureLossKind kind : reference::kFeatureLossKinds) {
      const FeatureLoss found = run(c, {kind}, std::vector<double>(c.q.size() / 8, -HUGE_VAL));
      const FeatureLoss plain = feature_loss(c.q_tensor(), c.k_tensor(), c.features(), {kind});
      EXPECT_EQ(to_doubles(found.per_head), to_doubles(plain.per_head));
      EXPECT_EQ(to_doubles(found.grad.z), to_doubles(plain.grad.z));
    }
}

TEST(FeatureLossRest, RefusesWhatDoesNotFit) {
  const AttentionCase c = reference::random_case({.tokens = 48, .counts = {3, 5}});
  const auto loss = [&](const FeatureLossOptions& options, const Tensor& rest = {}) {
    return feature_loss(c.q_tensor(), c.k_tensor(), c.features(), options, rest);
  };
  EXPECT_NO_THROW(loss({.block = 16}));
  EXPECT_THROW(loss({.block = 0}), std::invalid_argument);
  EXPECT_THROW(loss({.block = 3}), std::invalid_argument);
  EXPECT_THROW(loss({.block = 32}), std::invalid_argument);  // 48 tokens
  EXPECT_THROW(loss({.mask = PairMask::kFull, .block = 16}), std::invalid_argument);
  EXPECT_NO_THROW(loss({}, Tensor::zeros({1, 2, 48})));
  EXPECT_THROW(loss({}, Tensor::zeros({1, 1, 48})), std::invalid_argument);
  EXPECT_THROW(loss({}, Tensor::zeros({1, 2, 48}, DType::kF64)), std::invalid_argument);
}

}  // namespace
}  // namespace dofla
