#include "dofla/ops/heads.h"

#include <algorithm>
#include <cmath>
#include <tuple>

#include <gtest/gtest.h>

#include "dofla/ops/norm.h"
#include "tests/support/random_values.h"
#include "tests/support/tolerance.h"

namespace dofla {
namespace {

Tensor numbers(const std::vector<int64_t>& values) {
  Tensor out({static_cast<int64_t>(values.size())}, DType::kI64);
  std::ranges::copy(values, out.data<int64_t>());
  return out;
}

Tensor some_frequencies() {
  Tensor out({3});
  std::ranges::copy(std::vector<float>{1.0f, 0.3f, 0.01f}, out.data<float>());
  return out;
}

// GPT-NeoX keeps q, k and v of a head together: three views of one projection.
TEST(Heads, ViewsCoverTheRows) {
  Random random(1);
  const int64_t batch = 2, heads = 3, size = 4;
  for (const int64_t tokens : {1, 63, 64, 65}) {
    const Tensor rows = test::normal_tensor({batch * tokens, 3 * heads * size}, random);
    Tensor back(rows.shape());
    for (int64_t part = 0; part < 3; ++part) {
      const HeadColumns columns = {part * size, 3 * size};
      const Tensor together = contiguous_heads(view_heads(rows, columns, batch, heads, size));
      Tensor to = view_heads(back, columns, batch, heads, size);
      copy_heads(together, to);
    }
    EXPECT_TRUE(test::same_bits(rows, back));
  }
}

TEST(Heads, RefuseShapesThatDoNotFit) {
  const Tensor heads = Tensor::zeros({2, 3, 5, 4});
  Tensor rows = Tensor::zeros({10, 12}), fewer = Tensor::zeros({2, 3, 4, 4});
  EXPECT_THROW(view_heads(rows, {0, 4}, 3, 3, 4), std::invalid_argument);
  EXPECT_THROW(view_heads(rows, {1, 4}, 2, 3, 4), std::invalid_argument);
  EXPECT_THROW(copy_heads(heads, fewer), std::invalid_argument);
  Tensor cache = Tensor::zeros({2, 3, 8, 4});
  EXPECT_THROW(append_heads(heads, numbers({0, 4}), cache), std::invalid_argument);
  EXPECT_THROW(append_heads(heads, numbers({-1, 0}), cache), std::invalid_argument);
  EXPECT_THROW(append_heads(heads, numbers({0}), cache), std::invalid_argument);
}

// Every sequence of a cache goes on where it ended.
TEST(Heads, AppendAtThePlaceOfEverySequence) {
  Random random(4);
  const Tensor fresh = test::normal_tensor({2, 3, 2, 4}, random);
  const Tensor before = test::normal_tensor({2, 3, 8, 4}, random);
  Tensor cache = before.clone();
  append_heads(fresh, numbers({5, 1}), cache);
  for (int64_t b = 0; b < 2; ++b)
    for (int64_t h = 0; h < 3; ++h)
      for (int64_t t = 0; t < 8; ++t) {
        const int64_t from = t - (b == 0 ? 5 : 1), at = ((b * 3 + h) * 8 + t) * 4;
        const float expected = from >= 0 && from < 2
                                   ? fresh.data<float>()[((b * 3 + h) * 2 + from) * 4]
                                   : before.data<float>()[at];
        EXPECT_EQ(cache.data<float>()[at], expected) << b << h << t;
      }
}

// Through a view the heads are turned in the rows, and nothing else is.
TEST(Heads, RotateThroughAView) {
  Random random(3);
  const HeadColumns columns = {7, 20};
  Tensor rows = test::normal_tensor({2 * 65, 60}, random), expected = rows.clone();
  Tensor heads = contiguous_heads(view_heads(rows, columns, 2, 3, 8));
  rotate(heads, some_frequencies(), numbers({17, 17}));
  Tensor to = view_heads(expected, columns, 2, 3, 8);
  copy_heads(heads, to);
  Tensor view = view_heads(rows, columns, 2, 3, 8);
  rotate(view, some_frequencies(), numbers({17, 17}));
  EXPECT_TRUE(test::same_bits(rows, expected));
  EXPECT_TRUE(test::same_bits(contiguous_heads(view), heads));
}

// The angle of a pair is its frequency times the position in its own sequence.
TEST(Heads, RotateByThePositionOfEverySequence) {
  Random random(5);
  const std::vector<int64_t> first = {17, 17, 4, 100};
  const Tensor x = test::normal_tensor({4, 2, 3, 8}, random), frequencies = some_frequencies();
  for (const bool from_zero : {false, true}) {
    Tensor found = x.clone();
    rotate(found, frequencies, from_zero ? Tensor() : numbers(first));
    for (int64_t i = 0; i < x.count(); ++i) {
      const int64_t d = i % 8, t = i / 8 % 3, b = i / 48, pair = d % 3;
      const auto* row = x.data<float>() + i - d;
      double expected = row[d];
      if (d < 6) {
        const auto position =
            static_cast<double>((from_zero ? 0 : first[static_cast<size_t>(b)]) + t);
        const double angle = position * static_cast<double>(frequencies.data<float>()[pair]);
        const double cosine = std::cos(angle), sine = std::sin(angle);
        expected = d < 3 ? row[pair] * cosine - row[pair + 3] * sine
                         : row[pair + 3] * cosine + row[pair] * sine;
      }
      // The angle is rounded to float32, and reaches 102.
      EXPECT_NEAR(found.data<float>()[i], expected, 102 * 0x1p-22) << i;
    }
  }
}

// The inverse of a rotation is its transpose, which is what a backward needs.
TEST(Heads, RotateBackIsTheInverse) {
  Random random(2);
  for (const int64_t tokens : {1, 63, 64, 65}) {
    const Tensor x = test::normal_tensor({2, 2, tokens, 8}, random);
    Tensor found = x.clone();
    rotate(found, some_frequencies(), numbers({17, 3}));
    EXPECT_FALSE(test::same_bits(found, x));
    rotate(found, some_frequencies(), numbers({17, 3}), true);
    test::expect_near(found, x, test::float32_tolerance(2, 2, test::largest(x)), "there and back");
  }
}

// Norms leave what they were given as it is, for their backward.
TEST(Heads, PlaceNormsThenRotates) {
  Random random(6);
  const Tensor q = test::normal_tensor({2, 4, 3, 8}, random);
  const Tensor k = test::normal_tensor({2, 2, 3, 8}, random), first = numbers({9, 2});
  Placement placement = {.q_norm = test::normal_tensor({8}, random),
                         .k_norm = test::normal_tensor({8}, random),
                         .epsilon = 1e-5,
                         .frequencies = some_frequencies()};
  Tensor placed_q = q, placed_k = k;
  const Tensor q_before = q.clone();
  place_heads(placement, first, placed_q, placed_k);
  EXPECT_TRUE(test::same_bits(q, q_before));
  for (const auto& [placed, from, norm] :
       {std::tuple{placed_q, q, placement.q_norm}, std::tuple{placed_k, k, placement.k_norm}}) {
    Tensor expected = rms_norm(from, norm, 1e-5);
    rotate(expected, placement.frequencies, first);
    EXPECT_TRUE(test::same_bits(placed, expected));
  }
  placement.k_norm = Tensor();
  EXPECT_THROW(place_heads(placement, first, placed_q, placed_k), std::invalid_argument);
}

}  // namespace
}  // namespace dofla
