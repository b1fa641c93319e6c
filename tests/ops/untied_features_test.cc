// Untied features against references in double precision, and against the tied ones that they start
// as: one state a key head, directions of their own for queries, a weight of the keys' norm.
#include <algorithm>
#include <cmath>

#include <gtest/gtest.h>

#include "dofla/core/random.h"
#include "dofla/ops/feature_loss.h"
#include "dofla/ops/linear_attention.h"
#include "dofla/ops/positive_features.h"
#include "tests/reference/compare.h"
#include "tests/reference/feature_loss.h"
#include "tests/reference/linear_attention.h"
#include "tests/support/fixtures.h"

namespace dofla {
namespace {

using reference::AttentionCase;
using reference::to_doubles;

AttentionCase extreme() {
  return reference::untied_near(
      reference::fixture_case(test::fixtures() / "features_extreme.safetensors"));
}

std::vector<AttentionCase> cases() {
  return {reference::random_case(
              {.batch = 2, .tokens = 90, .width = 20, .counts = {5, 33}, .group = 3}),
          reference::random_case(
              {.tokens = 65, .width = 8, .counts = {1, 16}, .group = 1, .key_scale = 4}),
          reference::untied_near(reference::keys_that_grow()), extreme()};
}

Tensor attend(const AttentionCase& c, const Features& features, int64_t chunk,
              LinearAttentionState* state = nullptr) {
  return linear_attention(c.q_tensor(), c.k_tensor(), c.v_tensor(), features, state, chunk);
}

// Features of a group's query heads that are copies of the key head's, each with a state of its
// own.
Features copied(const Features& of_key_heads, int64_t group) {
  const Features all = untie(of_key_heads, group * of_key_heads.heads());
  Features out = {.counts = {}, .z = all.u, .log_alpha = Tensor({group * all.total()})};
  float* log_alpha = out.log_alpha.data<float>();
  for (int64_t head = 0; head < all.heads(); ++head)
    for (int64_t i = 0; i < group; ++i) {
      const int64_t count = all.counts[static_cast<size_t>(head)];
      out.counts.push_back(count);
      const float* from = all.log_alpha.data<float>() + all.offsets()[static_cast<size_t>(head)];
      log_alpha = std::copy_n(from, count, log_alpha);
    }
  return out;
}

Features tied_of(const AttentionCase& c) {
  Features features = c.features();
  features.u = features.norm_weight = {};
  return features;
}

TEST(UntiedFeatures, LogFeaturesAreThoseOfTheReference) {
  const AttentionCase c = cases().front();
  for (const FeatureSide side : {FeatureSide::kQueries, FeatureSide::kKeys}) {
    const bool queries = side == FeatureSide::kQueries;
    const Tensor logs =
        log_positive_features(queries ? c.q_tensor() : c.k_tensor(), c.features(), side);
    std::vector<double> expected(static_cast<size_t>(logs.count()));
    for (int64_t b = 0; b < c.batch; ++b)
      for (int64_t h = 0; h < c.heads; ++h) {
        const std::vector<double> head = reference::log_features(c, side, b, h);
        for (int64_t t = 0; t < c.tokens; ++t)
          std::copy_n(head.data() + t * c.count(h), c.count(h),
                      expected.data() + (b * c.tokens + t) * logs.size(2) + c.query_offset(h));
      }
    reference::expect_near(logs, expected, c.log_feature_error(), queries ? "queries" : "keys");
  }
}

TEST(UntiedFeatures, AllFormsOfAttentionMatchTheReference) {
  for (const AttentionCase& c : cases()) {
    const std::vector<double> expected = reference::linear_attention(c);
    for (const int64_t chunk : {int64_t{1}, int64_t{7}, kLinearAttentionChunk, c.tokens}) {
      LinearAttentionState state = new_linear_attention_state(c.batch, c.features());
      reference::expect_near(attend(c, c.features(), chunk, &state), expected,
                             reference::output_tolerance(c), fmt::format("chunk {}", chunk));
      // One state a key head, whatever the number of query heads.
      const int64_t total = c.features().total();
      EXPECT_EQ(state.bytes(), c.batch * linear_state_bytes(total, c.width));
    }
  }
}

TEST(UntiedFeatures, StepsGoOnFromAPrefill) {
  const AttentionCase c = cases().front();
  const std::vector<double> expected = reference::linear_attention(c);
  LinearAttentionState state = new_linear_attention_state(c.batch, c.features());
  std::vector<double> out(expected.size());
  const auto part = [&](const Tensor& x, int64_t begin, int64_t end) {  // tokens of [B, X, T, D]
    Tensor rows({x.size(0), x.size(1), end - begin, x.size(3)});
    for (int64_t i = 0; i < x.size(0) * x.size(1); ++i)
      std::copy_n(x.data<float>() + (i * c.tokens + begin) * c.width, (end - begin) * c.width,
                  rows.data<float>() + i * (end - begin) * c.width);
    return rows;
  };
  for (int64_t begin = 0; begin < c.tokens;) {
    const int64_t end = begin == 0 ? 80 : begin + 1;
    const Tensor q = part(c.q_tensor(), begin, end), k = part(c.k_tensor(), begin, end),
                 v = part(c.v_tensor(), begin, end);
    const Tensor found = begin == 0 ? linear_attention(q, k, v, c.features(), &state)
                                    : linear_attention_step(q, k, v, c.features(), state);
    const int64_t row = c.heads * c.width;
    for (int64_t b = 0; b < c.batch; ++b)
      std::copy_n(found.data<float>() + b * (end - begin) * row, (end - begin) * row,
                  out.data() + (b * c.tokens + begin) * row);
    begin = end;
  }
  reference::expect_near(reference::to_tensor(out, {static_cast<int64_t>(out.size())}), expected,
                         reference::output_tolerance(c), "prefill and steps");
}

TEST(UntiedFeatures, GradientsOfAttentionMatchTheReference) {
  for (const AttentionCase& c : cases()) {
    Random random(77);
    std::vector<double> grad_out(static_cast<size_t>(c.batch * c.tokens * c.heads * c.width));
    for (double& x : grad_out) x = static_cast<float>(random.normal());
    const auto expected = reference::linear_attention_backward(c, grad_out);
    const double relative = reference::weight_error(c);
    const auto within = [&](double sensitivity, double) {
      return relative * sensitivity + std::exp(-27);
    };
    for (const int64_t chunk : {int64_t{5}, kLinearAttentionChunk}) {
      const LinearAttentionGradients actual = linear_attention_backward(
          c.q_tensor(), c.k_tensor(), c.v_tensor(), c.features(),
          reference::to_tensor(grad_out, {c.batch, c.tokens, c.heads, c.width}), chunk);
      const auto compare = [&](const Tensor& found, const reference::Sensitive& wanted) {
        std::vector<double> tolerance;
        for (const double x : wanted.sensitivity) tolerance.push_back(within(x, 0));
        reference::expect_near(found, wanted.value, tolerance, fmt::format("chunk {}", chunk));
      };
      compare(actual.q, expected.q);
      compare(actual.k, expected.k);
      compare(actual.v, expected.v);
      reference::expect_feature_gradients(actual.features, expected.features, within,
                                          fmt::format("chunk {}", chunk));
    }
  }
}

void expect_losses(const AttentionCase& c, FeatureLossKind kind) {
  for (const PairMask mask : {PairMask::kCausal, PairMask::kFull}) {
    const FeatureLossOptions options = {kind, mask};
    const FeatureLoss actual = feature_loss(c.q_tensor(), c.k_tensor(), c.features(), options);
    const auto expected = reference::feature_loss(c, options);
    const std::string what =
        fmt::format("loss {}, mask {}", static_cast<int>(kind), static_cast<int>(mask));
    reference::expect_loss(actual, expected, reference::pair_error(c), what);
    reference::expect_gradients(actual, expected, reference::pair_error(c), what);
  }
}

TEST(UntiedFeatures, LossesMatchTheReference) {
  for (const FeatureLossKind kind : reference::kFeatureLossKinds) {
    expect_losses(cases()[0], kind);
    expect_losses(extreme(), kind);
  }
  // Where K̂ is far below K, float32 holds nothing of the gradients of l2.
  for (const FeatureLossKind kind : {FeatureLossKind::kSoftmax, FeatureLossKind::kAttentionMse})
    for (const AttentionCase& c : {cases()[1], cases()[2]}) expect_losses(c, kind);
}

// As they start: u = z and η = 1, so that every query head computes what a tied one would.
TEST(UntiedFeatures, StartAsTiedOnesBitForBit) {
  for (const AttentionCase& c : {cases()[0], cases()[1]}) {
    const int64_t group = c.heads / c.key_heads;
    const Features shared = untie(tied_of(c), c.heads), separate = copied(tied_of(c), group);
    for (const int64_t chunk : {int64_t{1}, int64_t{7}, kLinearAttentionChunk})
      EXPECT_EQ(to_doubles(attend(c, shared, chunk)), to_doubles(attend(c, separate, chunk)))
          << "chunk " << chunk;
    for (const FeatureLossKind kind : reference::kFeatureLossKinds) {
      const FeatureLoss one = feature_loss(c.q_tensor(), c.k_tensor(), shared, {kind});
      const FeatureLoss many = feature_loss(c.q_tensor(), c.k_tensor(), separate, {kind});
      EXPECT_EQ(to_doubles(one.per_head), to_doubles(many.per_head));
      // What moves z and u together moves the tied direction.
      const std::vector<double> of_z = to_doubles(one.grad.z), of_u = to_doubles(one.grad.u),
                                tied = to_doubles(many.grad.z);
      const reference::FeatureLossReference at = [&] {
        AttentionCase start = c;
        start.u = to_doubles(shared.u);
        start.norm_weight.assign(static_cast<size_t>(c.key_heads), 1.0);
        return reference::feature_loss(start, {kind});
      }();
      for (int64_t head = 0; head < c.key_heads; ++head)
        for (int64_t i = 0; i < c.count(head * group) * c.width; ++i) {
          const auto z = static_cast<size_t>(c.offset(head * group) * c.width + i);
          double apart = of_z[z], together = 0, sensitivity = at.grad.z.sensitivity[z];
          for (int64_t h = head * group; h < (head + 1) * group; ++h) {
            const auto u = static_cast<size_t>(c.query_offset(h) * c.width + i);
            apart += of_u[u], together += tied[u], sensitivity += at.grad.u.sensitivity[u];
          }
          ASSERT_NEAR(apart, together, 2 * reference::pair_error(c) * sensitivity);
        }
    }
  }
}

TEST(UntiedFeatures, RefusesWhatDoesNotFit) {
  const AttentionCase c = cases().front();
  const Features sound = c.features();
  const auto expect_refused = [&](const Features& features, const std::string& what) {
    try {
      attend(c, features, 64);
      ADD_FAILURE() << "accepted; expected an error with \"" << what << "\"";
    } catch (const std::invalid_argument& error) {
      EXPECT_NE(std::string(error.what()).find(what), std::string::npos) << error.what();
    }
    EXPECT_THROW(feature_loss(c.q_tensor(), c.k_tensor(), features), std::invalid_argument);
  };
  Features bad = sound;
  bad.u = Tensor::zeros({sound.u.size(0) - 1, c.width});
  expect_refused(bad, "features: u");
  bad = sound;
  bad.u = Tensor::zeros({sound.u.size(0), c.width + 1});
  expect_refused(bad, "features: u");
  bad = sound;
  bad.norm_weight = Tensor::zeros({sound.heads() + 1});
  expect_refused(bad, "norm_weight");
  bad = sound;
  bad.u = sound.u.slice(0, sound.total());  // of one query head where there are three
  expect_refused(bad, "query heads");
  // Keys of other heads than those that have the features.
  const Tensor k = Tensor::zeros({c.batch, 1, c.tokens, c.width});
  EXPECT_THROW(feature_loss(c.q_tensor(), k, sound), std::invalid_argument);
}

}  // namespace
}  // namespace dofla
