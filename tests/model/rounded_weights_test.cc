#include "dofla/model/rounded_weights.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include <gtest/gtest.h>

#include "dofla/checkpoint/tokenizer.h"
#include "dofla/evaluate/next_token.h"
#include "tests/support/expect_error.h"
#include "tests/support/fixtures.h"

namespace dofla {
namespace {

Tensor matrix_of(const std::vector<float>& values, int64_t rows) {
  Tensor matrix({rows, std::ssize(values) / rows});
  std::ranges::copy(values, matrix.data<float>());
  return matrix;
}

std::vector<float> values_of(const Tensor& tensor) {
  const Tensor wide = tensor.to(DType::kF32);
  return {wide.data<float>(), wide.data<float>() + wide.count()};
}

TEST(RoundRows, HasOneScaleARow) {
  // Steps of 1 in the first row, of 0.5 in the second; the third has none.
  const std::vector<float> values = {7, -3.4f, 0.6f, 3.5f, 1.6f, 1.8f, 0, 0, 0};
  EXPECT_EQ(values_of(round_rows(matrix_of(values, 3), false, 4)),
            (std::vector<float>{7, -3, 1, 3.5f, 1.5f, 2, 0, 0, 0}));
  // With three bits three steps to either side.
  EXPECT_EQ(values_of(round_rows(matrix_of({3, -1.4f, 1.6f, -9, 4, 5}, 2), false, 3)),
            (std::vector<float>{3, -1, 2, -9, 3, 6}));
}

TEST(RoundRows, OfAnInputMajorMatrixAreItsColumns) {
  const std::vector<float> values = {7, 3.5f, -3.4f, 1.6f, 0.6f, 1.8f};
  EXPECT_EQ(values_of(round_rows(matrix_of(values, 3), true, 4)),
            (std::vector<float>{7, 3.5f, -3, 1.5f, 1, 2}));
}

TEST(RoundRows, IsHalfAStepAwayAtMostAndTheSameWhenRepeated) {
  for (const DType type : {DType::kF32, DType::kBF16})
    for (const int bits : {8, 4, 2}) {
      Tensor matrix({40, 50});
      for (int64_t i = 0; i < matrix.count(); ++i)
        matrix.data<float>()[i] =
            std::sin(static_cast<float>(i * i)) * std::exp(static_cast<float>(i % 7) - 9);
      matrix = matrix.to(type);
      const Tensor rounded = round_rows(matrix, false, bits),
                   again = round_rows(rounded, false, bits);
      ASSERT_TRUE(rounded.is_scaled());
      EXPECT_EQ(std::memcmp(again.raw(), rounded.raw(), static_cast<size_t>(rounded.bytes())), 0);
      const std::vector<float> before = values_of(matrix), after = values_of(rounded);
      const double rounding = 2 * std::exp2(-24);  // of the factor, and of its product
      double largest_error = 0;
      for (size_t row = 0; row < 40; ++row) {
        double largest = 0;
        for (size_t i = row * 50; i < (row + 1) * 50; ++i)
          largest = std::max(largest, std::abs(double{before[i]}));
        const double step = largest / (std::exp2(bits - 1) - 1);
        for (size_t i = row * 50; i < (row + 1) * 50; ++i) {
          const double error = std::abs(double{before[i]} - after[i]);
          EXPECT_LE(error, step / 2 + rounding * largest);
          largest_error = std::max(largest_error, error / step);
          const double multiple = std::round(before[i] / step) * step;
          EXPECT_NEAR(after[i], multiple, rounding * std::abs(multiple) * (1 + 1e-9));
        }
      }
      EXPECT_GT(largest_error, 0.4) << "something was rounded";
    }
}

TEST(RoundRows, RefusesWhatItCannotRound) {
  EXPECT_THROW(round_rows(matrix_of({1}, 1), false, 1), std::invalid_argument);
  EXPECT_THROW(round_rows(matrix_of({1}, 1), false, 9), std::invalid_argument);
  EXPECT_THROW(round_rows(Tensor({3}), false, 8), std::invalid_argument);
  test::expect_error([] { round_rows(matrix_of({1, NAN}, 1), false, 8); }, {"not finite"});
  test::expect_error([] { round_rows(matrix_of({1, INFINITY}, 1), false, 8); }, {"not finite"});
}

class RoundedWeights : public testing::TestWithParam<std::string> {};

// By name: GPT-2 stores the layers of its blocks [inputs, outputs], all others the other way.
TEST_P(RoundedWeights, AreTheMatricesOfTheModelAndNothingElse) {
  const Checkpoint checkpoint(test::fixtures() / GetParam());
  const Checkpoint rounded = with_rounded_weights(checkpoint, 4);
  int64_t matrices = 0;
  for (const std::string& name : checkpoint.names()) {
    const Tensor before = checkpoint.tensor(name), after = rounded.tensor(name);
    const bool positions = name.ends_with("wpe.weight");
    if (before.rank() != 2 || positions || !name.ends_with(".weight")) {
      EXPECT_EQ(before.raw(), after.raw()) << name;
      continue;
    }
    ++matrices;
    const bool input_major = checkpoint.config().model_type == "gpt2" &&
                             (name.find(".attn.") != name.npos || name.find(".mlp.") != name.npos);
    EXPECT_EQ(values_of(after), values_of(round_rows(before, input_major, 4))) << name;
    EXPECT_NE(values_of(after), values_of(before)) << name;
  }
  EXPECT_GT(matrices, 4 * checkpoint.config().layers);
}

INSTANTIATE_TEST_SUITE_P(Fixtures, RoundedWeights, testing::ValuesIn(test::fixture_models()),
                         [](const auto& name) { return name.param; });

TEST(RoundedModel, IsWorseTheFewerBitsItHas) {
  const Checkpoint checkpoint(test::assets() / "wiki-mini");
  const TokenIds ids = Tokenizer::load(checkpoint.folder())
                           .encode(
                               "The town lies on the river. It has a church of the twelfth century "
                               "and a school. In the north are hills, and in the south is a lake.");
  const auto loss = [&](const Checkpoint& of) {
    return next_token_loss(Transformer(of), ids).loss;
  };
  const double exact = loss(checkpoint);
  EXPECT_NEAR(loss(with_rounded_weights(checkpoint, 8)), exact, 0.05);
  EXPECT_GT(loss(with_rounded_weights(checkpoint, 3)), exact + 0.1);
}

}  // namespace
}  // namespace dofla
