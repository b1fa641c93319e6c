#include "dofla/ops/heads.h"

#include <gtest/gtest.h>

#include "tests/support/random_values.h"
#include "tests/support/tolerance.h"

namespace dofla {
namespace {

// GPT-NeoX keeps q, k and v of a head together: three sources, one projection.
TEST(Heads, ScatterIsTheWayBackFromGather) {
  Random random(1);
  const int64_t batch = 2, heads = 3, size = 4;
  for (const int64_t tokens : {1, 63, 64, 65}) {
    const Tensor rows = test::normal_tensor({batch * tokens, 3 * heads * size}, random);
    Tensor back(rows.shape());
    for (int64_t part = 0; part < 3; ++part) {
      const HeadColumns columns = {part * size, 3 * size};
      scatter_heads(gather_heads(rows, columns, batch, heads, size), columns, back);
    }
    EXPECT_TRUE(test::same_bits(rows, back));
  }
}

TEST(Heads, ScatterRefusesShapesThatDoNotFit) {
  const Tensor heads = Tensor::zeros({2, 3, 5, 4});
  Tensor few_rows = Tensor::zeros({9, 12}), narrow = Tensor::zeros({10, 11});
  EXPECT_THROW(scatter_heads(heads, {0, 4}, few_rows), std::invalid_argument);
  EXPECT_THROW(scatter_heads(heads, {0, 4}, narrow), std::invalid_argument);
}

// Through a view the heads are turned in the rows, and nothing else is.
TEST(Heads, RotateThroughAView) {
  Random random(3);
  const std::vector<float> frequencies = {1.0f, 0.3f, 0.01f};
  const HeadColumns columns = {7, 20};
  Tensor rows = test::normal_tensor({2 * 65, 60}, random), expected = rows.clone();
  Tensor heads = gather_heads(rows, columns, 2, 3, 8);
  rotate(heads, frequencies, 17);
  scatter_heads(heads, columns, expected);
  Tensor view = view_heads(rows, columns, 2, 3, 8);
  rotate(view, frequencies, 17);
  EXPECT_TRUE(test::same_bits(rows, expected));
  EXPECT_TRUE(test::same_bits(contiguous_heads(view), heads));
}

// The inverse of a rotation is its transpose, which is what a backward needs.
TEST(Heads, NegatedFrequenciesRotateBack) {
  Random random(2);
  const std::vector<float> forth = {1.0f, 0.3f, 0.01f}, back = {-1.0f, -0.3f, -0.01f};
  for (const int64_t tokens : {1, 63, 64, 65}) {
    const Tensor x = test::normal_tensor({2, 2, tokens, 8}, random);
    Tensor turned = x.clone();
    rotate(turned, forth, 17);
    Tensor found = turned.clone();
    rotate(found, back, 17);
    test::expect_near(found, x, test::float32_tolerance(2, 2, test::largest(x)), "there and back");
  }
}

}  // namespace
}  // namespace dofla
