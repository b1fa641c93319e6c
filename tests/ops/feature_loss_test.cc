#include "dofla/ops/feature_loss.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include <gtest/gtest.h>

#include "dofla/checkpoint/safetensors.h"
#include "dofla/core/parallel.h"
#include "dofla/core/random.h"
#include "tests/reference/attention_case.h"
#include "tests/reference/compare.h"
#include "tests/reference/feature_loss.h"
#include "tests/reference/linear_attention.h"
#include "tests/support/fixtures.h"

namespace dofla {
namespace {

using reference::AttentionCase;
using reference::expect_gradients;
using reference::expect_loss;
using reference::expect_near;
using reference::FeatureLossReference;
using reference::pair_error;
using reference::scaled;
using reference::to_doubles;

const std::vector<PairMask> kMasks = {PairMask::kCausal, PairMask::kFull};

std::string label(const FeatureLossOptions& options) {
  const std::vector<std::string> kinds = {"softmax", "l2", "attention-mse"};
  return kinds[static_cast<size_t>(options.kind)] +
         (options.mask == PairMask::kCausal ? ".causal" : ".full");
}

FeatureLoss run(const AttentionCase& c, const FeatureLossOptions& options) {
  return feature_loss(c.q_tensor(), c.k_tensor(), c.features(), options);
}

void expect_correct(const AttentionCase& c, const FeatureLossOptions& options,
                    const std::string& what) {
  const FeatureLoss actual = run(c, options);
  const FeatureLossReference expected = reference::feature_loss(c, options);
  expect_loss(actual, expected, pair_error(c), what);
  expect_gradients(actual, expected, pair_error(c), what);
}

// The reference's own gradients, against the slope of its loss along a random direction.
TEST(FeatureLoss, TheReferenceHasTheSlopesItClaims) {
  for (const auto& [key_scale, group] : {std::pair(1.0, 0), {8.0, 0}, {1.0, 3}, {8.0, 3}}) {
    const AttentionCase c = reference::random_case({.batch = 2,
                                                    .key_heads = 1,
                                                    .tokens = 12,
                                                    .width = 8,
                                                    .counts = {3, 10},
                                                    .group = group,
                                                    .key_scale = key_scale});
    const std::vector<double> no_rest, rest = reference::every_rest(c);
    for (const FeatureLossKind kind : reference::kFeatureLossKinds) {
      for (const auto& [options, of_rows] : {std::pair(FeatureLossOptions{kind}, no_rest),
                                             {{kind, PairMask::kFull}, no_rest},
                                             {{kind, PairMask::kFull}, rest},
                                             {{.kind = kind, .block = 4}, rest}}) {
        const FeatureLossReference at = reference::feature_loss(c, options, of_rows);
        AttentionCase up = c, down = c;
        Random random(9);
        const double step = 1e-6;
        double slope = 0, size = 0;
        const auto nudge = [&](std::vector<double>& above, std::vector<double>& below,
                               const std::vector<double>& gradient) {
          for (size_t i = 0; i < gradient.size(); ++i) {
            const double direction = random.normal();
            above[i] += step * direction;
            below[i] -= step * direction;
            slope += direction * gradient[i];
            size += std::abs(direction * gradient[i]);
          }
        };
        nudge(up.z, down.z, at.grad.z.value);
        nudge(up.log_alpha, down.log_alpha, at.grad.log_alpha.value);
        nudge(up.u, down.u, at.grad.u.value);
        nudge(up.norm_weight, down.norm_weight, at.grad.norm_weight.value);
        const double difference = (reference::feature_loss(up, options, of_rows).total() -
                                   reference::feature_loss(down, options, of_rows).total()) /
                                  (2 * step);
        // Truncation goes with the square of the step, cancellation with its inverse.
        EXPECT_NEAR(slope, difference, 1e-6 * size + 1e-15 * at.total() / step)
            << label(options) << ", key scale " << key_scale << ", group " << group;
      }
    }
  }
}

TEST(FeatureLoss, MatchesTheFixture) {
  const fs::path file = test::fixtures() / "features.safetensors";
  const AttentionCase c = reference::fixture_case(file);
  const Safetensors fixture(file);
  const double relative = pair_error(c);
  for (const FeatureLossKind kind : {FeatureLossKind::kSoftmax, FeatureLossKind::kL2}) {
    for (const PairMask mask : kMasks) {
      const FeatureLossOptions options{kind, mask, L2Scale::kRaw};
      const std::string what = label(options);
      const FeatureLoss actual = run(c, options);
      const FeatureLossReference reference = reference::feature_loss(c, options);
      expect_loss(actual, reference, relative, what);
      EXPECT_NEAR(reference.total(), to_doubles(fixture.tensor(what + ".loss"))[0],
                  1e-12 * reference.total());
      expect_near(actual.grad.z, to_doubles(fixture.tensor(what + ".grad_z")),
                  scaled(reference.grad.z.sensitivity, relative), what + ".grad_z");
      expect_near(actual.grad.log_alpha, to_doubles(fixture.tensor(what + ".grad_log_alpha")),
                  scaled(reference.grad.log_alpha.sensitivity, relative), what + ".grad_log_alpha");
    }
  }
}

TEST(FeatureLoss, MatchesTheReferenceAtEveryLength) {
  for (const int64_t tokens : {1, 63, 64, 65, 1000}) {
    const AttentionCase c = reference::random_case(
        {.batch = 1, .key_heads = 1, .tokens = tokens, .width = 20, .counts = {5, 17}});
    for (const FeatureLossKind kind : reference::kFeatureLossKinds)
      expect_correct(c, {.kind = kind}, fmt::format("{} tokens, {}", tokens, label({kind})));
  }
}

TEST(FeatureLoss, SharesKeyHeadsAndTakesRaggedFeatures) {
  const AttentionCase c = reference::random_case(
      {.batch = 3, .key_heads = 2, .tokens = 70, .width = 8, .counts = {1, 16, 40, 3}});
  for (const FeatureLossKind kind : reference::kFeatureLossKinds)
    for (const PairMask mask : kMasks) expect_correct(c, {kind, mask}, label({kind, mask}));
}

// Exponents between -300 and 300: pairs whose factors vanish, rows that one key decides.
TEST(FeatureLoss, IsFiniteAndRightOnExtremeKeys) {
  const AttentionCase c =
      reference::fixture_case(test::fixtures() / "features_extreme.safetensors");
  for (const FeatureLossKind kind : reference::kFeatureLossKinds)
    for (const PairMask mask : kMasks) expect_correct(c, {kind, mask}, label({kind, mask}));
}

// The last query has no feature in common with the second key, so that their product vanishes. It
// may be left out if teacher and student neglect the pair, and here only one of them does.
TEST(FeatureLoss, APairThatOnlyOneNeglectsCounts) {
  constexpr double kSize = 12;
  for (const bool teacher_sees_it : {true, false}) {
    const double common = teacher_sees_it ? 12.5 : 0, second = teacher_sees_it ? kSize : 3 * kSize;
    AttentionCase c = reference::random_case({.tokens = 3, .width = 4, .counts = {2}});
    c.q = {0, kSize, 0, 0, 0, kSize, 0, 0, kSize, 0, common, 0};
    c.k = {kSize, 0, 0, 0, 0, kSize, common, 0, 0, 0, 0, kSize};
    c.z = {kSize, 0, 0, 0, 0, second, 0, 0};
    c.log_alpha = {0, 0};
    const auto student = reference::log_kernel_hat(c, 0, 0),
               teacher = reference::log_kernel(c, 0, 0);
    const double in_teacher = teacher[7] - teacher[6], in_student = student[7] - student[6];
    ASSERT_TRUE(teacher_sees_it ? in_teacher > 5 && in_student < -80
                                : in_teacher < -50 && in_student > 80);
    for (const FeatureLossKind kind : reference::kFeatureLossKinds)
      for (const PairMask mask : kMasks) expect_correct(c, {kind, mask}, label({kind, mask}));
  }
}

TEST(FeatureLoss, L2IsFiniteWhateverTheScale) {
  for (const double scale : {0.01, 1.0, 5.0, 20.0, 100.0}) {
    const AttentionCase c = reference::random_case({.key_heads = 2,
                                                    .tokens = 130,
                                                    .width = 64,
                                                    .counts = {16, 64},
                                                    .query_scale = scale,
                                                    .key_scale = scale});
    for (const PairMask mask : kMasks) {
      const FeatureLoss loss = run(c, {FeatureLossKind::kL2, mask});
      for (const double x : to_doubles(loss.per_head)) {
        EXPECT_TRUE(std::isfinite(x));
        EXPECT_GT(x, 0);
      }
      for (const Tensor& gradient : {loss.grad.z, loss.grad.log_alpha})
        for (const double x : to_doubles(gradient)) EXPECT_TRUE(std::isfinite(x));
    }
  }
}

TEST(FeatureLoss, ALaterTokenChangesNoEarlierRow) {
  const AttentionCase c = reference::random_case({.tokens = 66, .counts = {8}});
  AttentionCase shorter = c;
  shorter.tokens = 65;
  for (std::vector<double>* x : {&shorter.q, &shorter.k, &shorter.v})
    x->resize(static_cast<size_t>(65 * c.width));
  const FeatureLossReference whole = reference::feature_loss(c, {});
  const double added = run(c, {}).total() * 66 - run(shorter, {}).total() * 65;
  const double expected = whole.total() * 66 - reference::feature_loss(shorter, {}).total() * 65;
  EXPECT_NEAR(added, expected, pair_error(c) * whole.per_head.sensitivity[0] * 2 * 66);
}

TEST(FeatureLoss, GivesTheSameBitsWhateverTheThreads) {
  const AttentionCase c =
      reference::random_case({.batch = 2, .key_heads = 3, .tokens = 100, .counts = {8, 24, 9}});
  const FeatureLoss first = run(c, {});
  const int threads = omp_get_max_threads();
  omp_set_num_threads(5);
  const FeatureLoss second = run(c, {});
  omp_set_num_threads(threads);
  EXPECT_EQ(to_doubles(first.per_head), to_doubles(second.per_head));
  EXPECT_EQ(to_doubles(first.grad.z), to_doubles(second.grad.z));
  EXPECT_EQ(to_doubles(first.grad.log_alpha), to_doubles(second.grad.log_alpha));
}

TEST(FeatureLoss, NotANumberShows) {
  AttentionCase c = reference::random_case({.tokens = 20, .counts = {8}});
  c.k[40] = std::numeric_limits<double>::quiet_NaN();
  for (const FeatureLossKind kind : reference::kFeatureLossKinds)
    EXPECT_TRUE(std::isnan(run(c, {kind}).total()));
}

TEST(FeatureLoss, RefusesWhatDoesNotFit) {
  const AttentionCase c = reference::random_case({.tokens = 4, .counts = {3, 5}});
  const Features features = c.features();
  EXPECT_THROW(feature_loss(c.k_tensor(), c.k_tensor(), features), std::invalid_argument);
  EXPECT_THROW(feature_loss(c.q_tensor(), c.k_tensor().to(DType::kF64), features),
               std::invalid_argument);
  EXPECT_THROW(feature_loss(Tensor({1, 2, 0, 16}), Tensor({1, 1, 0, 16}), features),
               std::invalid_argument);
}

}  // namespace
}  // namespace dofla
