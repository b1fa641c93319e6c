#include "dofla/features/coordinates.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include <gtest/gtest.h>

#include "dofla/dof/measure.h"
#include "dofla/features/feature_map.h"
#include "tests/support/expect_error.h"
#include "tests/support/fixtures.h"
#include "tests/support/linear_fixture.h"

namespace dofla {
namespace {

using Matrix = std::vector<double>;

std::vector<std::vector<int64_t>> rows_of(const Tensor& ids) {
  std::vector<std::vector<int64_t>> rows;
  for (int64_t b = 0; b < ids.size(0); ++b) rows.push_back(test::as_vector(ids.slice(b, b + 1)));
  return rows;
}

QueryKeyMoments moments_of(const Checkpoint& checkpoint, const Tensor& ids) {
  QueryKeyMoments moments(checkpoint.config());
  const Transformer model(checkpoint);
  model.forward(ids, {.state = nullptr, .observer = moments.observer(), .heads_only = true});
  return moments;
}

Matrix times(const Matrix& a, const Matrix& b, int64_t n) {
  Matrix out(a.size());
  for (int64_t i = 0; i < n; ++i)
    for (int64_t j = 0; j < n; ++j)
      for (int64_t k = 0; k < n; ++k)
        out[static_cast<size_t>(i * n + j)] +=
            a[static_cast<size_t>(i * n + k)] * b[static_cast<size_t>(k * n + j)];
  return out;
}

// With one percent of its mean variance more in every direction.
Matrix ridged(Matrix covariance, int64_t n) {
  double trace = 0;
  for (int64_t i = 0; i < n; ++i) trace += covariance[static_cast<size_t>(i * n + i)];
  for (int64_t i = 0; i < n; ++i)
    covariance[static_cast<size_t>(i * n + i)] += 0.01 * trace / static_cast<double>(n);
  return covariance;
}

Matrix map_of(const LayerCoordinates& layer, int64_t head, int64_t n) {
  const float* from = layer.map.data<float>() + head * n * n;
  return {from, from + n * n};
}

class FixtureCoordinates : public testing::TestWithParam<std::string> {
 protected:
  const Checkpoint checkpoint{test::fixtures() / GetParam()};
  const ModelConfig config = checkpoint.config();
  const Tensor ids = Safetensors(checkpoint.folder() / "expected.safetensors").tensor("input_ids");

  Tensor logits(const Checkpoint& of) const {
    const Transformer model(of);
    return model.logits(model.forward(ids).reshape({ids.count(), config.width}));
  }
};

// The softmax model is the same function in all coordinates.
TEST_P(FixtureCoordinates, DoNotChangeTheModel) {
  const Transformer model(checkpoint);
  const Tensor before = logits(checkpoint);
  for (const Coordinates kind : {Coordinates::kCentred, Coordinates::kBalanced}) {
    const CoordinateSet set = measure_coordinates(model, rows_of(ids), kind);
    ASSERT_EQ(static_cast<int64_t>(set.layers.size()), config.layers);
    EXPECT_TRUE(set.unvaried.empty());
    test::expect_near(logits(in_coordinates(checkpoint, set)), before,
                      test::forward_tolerance(config, before), std::string(name(kind)));
  }
}

TEST_P(FixtureCoordinates, RawOnesAreTheModelsOwn) {
  const CoordinateSet set =
      measure_coordinates(Transformer(checkpoint), rows_of(ids), Coordinates::kRaw);
  EXPECT_TRUE(set.layers.empty());
  const Tensor before = logits(checkpoint), after = logits(in_coordinates(checkpoint, set));
  test::expect_near(after, before, 0, "logits");
}

// What is not rotated has the same covariance on both sides, and a sum without a mean.
TEST_P(FixtureCoordinates, BalanceQueriesAndKeys) {
  const CoordinateSet set =
      choose_coordinates(config, moments_of(checkpoint, ids), Coordinates::kBalanced);
  const QueryKeyMoments before = moments_of(checkpoint, ids);
  const QueryKeyMoments after = moments_of(in_coordinates(checkpoint, set), ids);
  const int64_t size = config.head_size, pairs = config.rope.dims / 2;
  for (int64_t layer = 0; layer < config.layers; ++layer)
    for (int64_t head = 0; head < config.kv_heads; ++head) {
      const Matrix map = map_of(set.layers[static_cast<size_t>(layer)], head, size);
      const Moments q = before.queries(layer, head), k = before.keys(layer, head);
      const Moments q2 = after.queries(layer, head), k2 = after.keys(layer, head);
      // Lengths of rotated pairs, up to the ridge: that of the scaled query is that of the key.
      for (int64_t i = 0; i < pairs && !config.qk_norm; ++i) {
        const auto length = [&](const Moments& of) {
          const auto square = [&](int64_t c) {
            return of.second[static_cast<size_t>(c * size + c)];
          };
          return square(i) + square(i + pairs);
        };
        const auto mean = [&](const Moments& of) {
          double sum = 0;
          for (int64_t c = 0; c < 2 * pairs; ++c)
            sum += of.second[static_cast<size_t>(c * size + c)];
          return sum / static_cast<double>(pairs);
        };
        const double scale = map[static_cast<size_t>(i * size + i)];
        EXPECT_NEAR(length(q2), length(q) * scale * scale, 1e-4 * length(q2));
        EXPECT_NEAR((length(q) + 0.01 * mean(q)) * std::pow(scale, 4), length(k) + 0.01 * mean(k),
                    1e-5 * (length(k) + 0.01 * mean(k)));
      }
      if (pairs > 0 || config.qk_norm) continue;
      // S C_q S = C_k with S = A A.
      const Matrix square = times(map, map, size), target = ridged(k.covariance, size);
      const Matrix found = times(square, times(ridged(q.covariance, size), square, size), size);
      const double largest = *std::ranges::max_element(target);
      for (size_t i = 0; i < found.size(); ++i) EXPECT_NEAR(found[i], target[i], 1e-4 * largest);
      for (int64_t i = 0; i < size; ++i) {
        const auto at = static_cast<size_t>(i);
        const double spread = std::sqrt(k2.second[static_cast<size_t>(i * size + i)]);
        EXPECT_NEAR(q2.mean[at] + k2.mean[at], 0, 1e-4 * spread) << layer << ' ' << head;
      }
    }
}

INSTANTIATE_TEST_SUITE_P(Fixtures, FixtureCoordinates, testing::ValuesIn(test::fixture_models()));

class Gpt2Coordinates : public testing::Test {
 protected:
  const Checkpoint checkpoint{test::fixtures() / "gpt2"};
  const ModelConfig config = checkpoint.config();
  const Tensor ids = test::some_ids(config, 2, 48);

  // The fused projection of the first layer with change(weight [C, 3C]) and change(bias [1, 3C]).
  template <class Change>
  Checkpoint changed(const Change& change) const {
    NamedTensors tensors;
    for (const std::string& name : checkpoint.names())
      if (name.ends_with("h.0.attn.c_attn.weight") || name.ends_with("h.0.attn.c_attn.bias")) {
        Tensor tensor = checkpoint.tensor(name).to(DType::kF32).clone();
        change(tensor);
        tensors.emplace_back(name, tensor);
      }
    EXPECT_EQ(tensors.size(), 2u);
    return checkpoint.with(tensors);
  }
};

// Turned, stretched and shifted coordinates are balanced to the same degrees of freedom: the raw
// ones are not.
TEST_F(Gpt2Coordinates, BalancedDegreesOfFreedomDoNotDependOnWhereTheModelBegan) {
  CoordinateSet other = {.kind = Coordinates::kBalanced};
  const int64_t size = config.head_size;
  for (int64_t layer = 0; layer < config.layers; ++layer) {
    LayerCoordinates to = {Tensor({config.kv_heads, size, size}), Tensor({config.kv_heads, size})};
    for (int64_t head = 0; head < config.kv_heads; ++head) {
      const Tensor drawn = orthogonal_directions(size, size, 5, static_cast<uint64_t>(head));
      for (int64_t i = 0; i < size; ++i) {
        const float* row = drawn.data<float>() + i * size;
        double norm = 0;
        for (int64_t c = 0; c < size; ++c) norm += double{row[c]} * row[c];
        for (int64_t c = 0; c < size; ++c)
          to.map.data<float>()[(head * size + i) * size + c] =
              static_cast<float>(3 * row[c] / std::sqrt(norm));
        to.shift.data<float>()[head * size + i] = static_cast<float>(i % 5) - 2;
      }
    }
    other.layers.push_back(to);
  }
  const Checkpoint moved = in_coordinates(checkpoint, other);
  const DofOptions options = {.samples = 64, .draws = 2};
  const auto dof = [&](const Checkpoint& of, Coordinates kind) {
    return degrees_of_freedom(measure_dof(of, kind, rows_of(ids), options), options.lambda);
  };
  const auto here = dof(checkpoint, Coordinates::kBalanced);
  const auto there = dof(moved, Coordinates::kBalanced);
  const auto raw_here = dof(checkpoint, Coordinates::kRaw),
             raw_there = dof(moved, Coordinates::kRaw);
  double raw_difference = 0;
  for (size_t layer = 0; layer < here.size(); ++layer)
    for (size_t head = 0; head < here[layer].heads.size(); ++head) {
      EXPECT_NEAR(here[layer].heads[head].mean, there[layer].heads[head].mean, 1e-2);
      raw_difference = std::max(raw_difference, std::abs(raw_here[layer].heads[head].mean -
                                                         raw_there[layer].heads[head].mean));
    }
  EXPECT_GT(raw_difference, 1);
}

TEST_F(Gpt2Coordinates, AHeadThatDoesNotVaryKeepsItsOwn) {
  const int64_t size = config.head_size;
  // Queries of the second head are always 0.
  const Checkpoint dead = changed([&](Tensor& tensor) {
    const int64_t columns = tensor.size(-1);
    for (int64_t r = 0; r < tensor.count() / columns; ++r)
      std::fill_n(tensor.data<float>() + r * columns + size, size, 0.0f);
  });
  const CoordinateSet set =
      measure_coordinates(Transformer(dead), rows_of(ids), Coordinates::kBalanced);
  ASSERT_EQ(set.unvaried, (std::vector<std::pair<int64_t, int64_t>>{{0, 1}}));
  const Matrix map = map_of(set.layers[0], 1, size);
  for (int64_t i = 0; i < size; ++i)
    for (int64_t j = 0; j < size; ++j)
      EXPECT_EQ(map[static_cast<size_t>(i * size + j)], i == j ? 1 : 0);
  const Transformer before(dead), after(in_coordinates(dead, set));
  const Tensor reference = before.forward(ids);
  test::expect_near(after.forward(ids), reference, test::forward_tolerance(config, reference),
                    "hidden");
}

// Two tokens span one direction of the sixteen and more that a head has.
TEST_F(Gpt2Coordinates, FewerVectorsThanDimensionsAreEnough) {
  const CoordinateSet set =
      measure_coordinates(Transformer(checkpoint), {{1, 2}}, Coordinates::kBalanced);
  for (const LayerCoordinates& layer : set.layers)
    for (int64_t i = 0; i < layer.map.count(); ++i)
      ASSERT_TRUE(std::isfinite(layer.map.data<float>()[i]));
  const Tensor reference = Transformer(checkpoint).forward(ids);
  test::expect_near(Transformer(in_coordinates(checkpoint, set)).forward(ids), reference,
                    test::forward_tolerance(config, reference), "hidden");
}

TEST_F(Gpt2Coordinates, WhatIsNotFiniteIsNamed) {
  const Checkpoint broken = changed(
      [](Tensor& tensor) { tensor.data<float>()[0] = std::numeric_limits<float>::quiet_NaN(); });
  test::expect_error(
      [&] { measure_coordinates(Transformer(broken), rows_of(ids), Coordinates::kBalanced); },
      {"layer 1, head 1", "not finite"});
}

TEST_F(Gpt2Coordinates, AMapWithoutAnInverseIsRefused) {
  CoordinateSet set =
      measure_coordinates(Transformer(checkpoint), rows_of(ids), Coordinates::kBalanced);
  std::fill_n(set.layers[1].map.data<float>(), config.head_size, 0.0f);
  test::expect_error([&] { in_coordinates(checkpoint, set); },
                     {"layer 2, key head 1", "no inverse"});
}

}  // namespace
}  // namespace dofla
