#include "dofla/ops/embedding.h"

#include <gtest/gtest.h>

#include "tests/support/random_values.h"

namespace dofla {
namespace {

TEST(EmbedSequences, AddsThePositionsOfEverySequence) {
  Random random(2);
  const Tensor tokens = test::normal_tensor({9, 5}, random);
  const Tensor positions = test::normal_tensor({8, 5}, random);
  Tensor ids({2, 3}, DType::kI64), first({2}, DType::kI64);
  for (int64_t i = 0; i < 6; ++i) ids.data<int64_t>()[i] = i * 4 % 9;
  first.data<int64_t>()[0] = 5, first.data<int64_t>()[1] = 2;
  for (const bool from_zero : {false, true}) {
    const Tensor begin = from_zero ? Tensor() : first;
    const Tensor found = embed_sequences(tokens, positions, ids, begin);
    const Tensor bare = embed_sequences(tokens, Tensor(), ids, begin);
    ASSERT_EQ(found.shape(), (Shape{6, 5}));
    for (int64_t i = 0; i < 6; ++i)
      for (int64_t c = 0; c < 5; ++c) {
        const float token = tokens.data<float>()[ids.data<int64_t>()[i] * 5 + c];
        const int64_t at = (from_zero ? 0 : first.data<int64_t>()[i / 3]) + i % 3;
        EXPECT_EQ(bare.data<float>()[i * 5 + c], token);
        EXPECT_EQ(found.data<float>()[i * 5 + c], token + positions.data<float>()[at * 5 + c]);
      }
  }
  first.data<int64_t>()[0] = 6;
  EXPECT_THROW(embed_sequences(tokens, positions, ids, first), std::invalid_argument);
}

TEST(Embed, AScaledTableHasItsFactorsInIt) {
  Tensor whole({3, 4}, DType::kI8), ids({3}, DType::kI64);
  for (int64_t i = 0; i < 12; ++i) whole.data<int8_t>()[i] = static_cast<int8_t>(11 * i - 60);
  for (int64_t i = 0; i < 3; ++i) ids.data<int64_t>()[i] = 2 - i;
  for (const Shape& shape : {Shape{3, 1}, Shape{1, 4}}) {
    Tensor factors(shape);
    for (int64_t i = 0; i < factors.count(); ++i)
      factors.data<float>()[i] = 0.25f * static_cast<float>(i + 1);
    const Tensor found = embed(Tensor::scaled(whole, factors), ids);
    for (int64_t i = 0; i < 3; ++i)
      for (int64_t c = 0; c < 4; ++c)
        EXPECT_EQ(found.data<float>()[i * 4 + c],
                  static_cast<float>(whole.data<int8_t>()[(2 - i) * 4 + c]) *
                      factors.data<float>()[shape[0] == 3 ? 2 - i : c]);
  }
}

// The same additions in the same order: equal to the last bit.
TEST(EmbedBackward, AddsRowsInOrder) {
  Random random(1);
  const int64_t vocabulary = 7, width = 70;
  for (const int64_t count : {1, 63, 64, 65}) {
    Tensor ids({count}, DType::kI64);
    for (int64_t i = 0; i < count; ++i)
      ids.data<int64_t>()[i] = static_cast<int64_t>(random.below(vocabulary));
    const Tensor grad = test::normal_tensor({count, width}, random);
    Tensor found = test::normal_tensor({vocabulary, width}, random), expected = found.clone();
    for (int64_t i = 0; i < count; ++i)
      for (int64_t c = 0; c < width; ++c)
        expected.data<float>()[ids.data<int64_t>()[i] * width + c] +=
            grad.data<float>()[i * width + c];
    embed_backward(ids, grad, found);
    EXPECT_TRUE(test::same_bits(found, expected)) << count;
  }
}

TEST(EmbedBackward, RefusesIdsAndShapesThatDoNotFit) {
  Tensor ids = Tensor::zeros({2}, DType::kI64), table = Tensor::zeros({5, 3});
  EXPECT_THROW(embed_backward(ids, Tensor::zeros({2, 4}), table), std::invalid_argument);
  EXPECT_THROW(embed_backward(ids, Tensor::zeros({1, 3}), table), std::invalid_argument);
  ids.data<int64_t>()[1] = 5;
  EXPECT_THROW(embed_backward(ids, Tensor::zeros({2, 3}), table), std::invalid_argument);
}

}  // namespace
}  // namespace dofla
