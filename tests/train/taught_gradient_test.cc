#include "dofla/train/taught_gradient.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include <gtest/gtest.h>

#include "dofla/model/imitation_gradient.h"
#include "tests/support/fixtures.h"
#include "tests/support/random_values.h"
#include "tests/support/slope.h"
#include "tests/support/tolerance.h"

namespace dofla {
namespace {

constexpr Trained kWeights = {.weights = true};

class TaughtGradient : public testing::Test {
 protected:
  TaughtGradient() {
    model.make_trainable();
    Random random(3);
    for (auto& [name, tensor] : parameters(model, kWeights))  // another model than the teacher
      for (int64_t i = 0; i < tensor.count(); ++i)
        Tensor(tensor).data<float>()[i] += static_cast<float>(0.05 * random.normal());
  }
  double loss(int64_t top) const {
    Gradients none;
    return taught_gradient(model, top_tokens(teacher, ids, top), ids, false, none);
  }

  const Checkpoint checkpoint{test::tests_folder() / "models/stories260K"};
  const Transformer teacher{checkpoint};
  Transformer model{checkpoint};
  const Tensor ids = to_tensor({1, 400, 30, 7, 250, 90, 411, 12});
  const int64_t vocabulary = checkpoint.config().vocabulary;
};

TEST_F(TaughtGradient, NamesTheLikeliestTokens) {
  const TopTokens found = top_tokens(teacher, ids, 6);
  const Tensor hidden = teacher.forward(ids);
  const Tensor logits = teacher.logits(hidden.reshape({8, hidden.size(2)}));
  for (int64_t row = 0; row < 8; ++row) {
    const float* z = logits.data<float>() + row * vocabulary;
    std::vector<int32_t> order(static_cast<size_t>(vocabulary));
    std::iota(order.begin(), order.end(), 0);
    std::ranges::stable_sort(order, [&](int32_t a, int32_t b) { return z[a] > z[b]; });
    double sum = 0, rest = 1;
    for (int64_t i = 0; i < vocabulary; ++i) sum += std::exp(static_cast<double>(z[i]));
    for (size_t i = 0; i < 6; ++i) {
      const size_t at = static_cast<size_t>(6 * row) + i;
      EXPECT_EQ(found.tokens[at], order[i]);
      const double p = std::exp(static_cast<double>(z[order[i]])) / sum;
      EXPECT_NEAR(found.log_probability[at], std::log(p), 1e-5);
      rest -= p;
    }
    EXPECT_NEAR(std::exp(found.log_rest[static_cast<size_t>(row)]), rest, 1e-5);
  }
}

TEST_F(TaughtGradient, OfTheWholeVocabularyIsThatOfTheTeacher) {
  Gradients taught = new_gradients(model, kWeights), imitated = new_gradients(model, kWeights);
  const double found =
      taught_gradient(model, top_tokens(teacher, ids, vocabulary), ids, false, taught, 0.5);
  const double expected = imitation_gradient(model, teacher, ids, false, imitated, 0.5);
  EXPECT_NEAR(found, expected, 1e-5 * expected);
  const NamedTensors a = parameters(taught), b = parameters(imitated);
  for (size_t i = 0; i < a.size(); ++i)
    test::expect_near(a[i].second, b[i].second,
                      test::float32_tolerance(vocabulary, 12 * checkpoint.config().layers,
                                              test::largest(b[i].second)),
                      a[i].first);
}

TEST_F(TaughtGradient, IsTheSlopeOfTheLoss) {
  for (const int64_t top : {1, 5}) {
    const TopTokens rows = top_tokens(teacher, ids, top);
    Gradients gradients = new_gradients(model, kWeights);
    taught_gradient(model, rows, ids, false, gradients);
    const NamedTensors found = parameters(gradients);
    const auto again = [&] {
      Gradients none;
      return taught_gradient(model, rows, ids, false, none);
    };
    test::expect_slope(
        parameters(model, kWeights), found, again, 1e-4,
        test::float32_tolerance(vocabulary, 12 * checkpoint.config().layers, test::norm_of(found)),
        fmt::format("top {}", top));
  }
}

// Merging tokens into one bucket never makes distributions more different.
TEST_F(TaughtGradient, GrowsWithTheTokensThatAreNamed) {
  double before = 0;
  for (const int64_t top : {1, 4, 16, 64, 256, 512}) {
    const double now = loss(top);
    EXPECT_GE(now, before - 1e-6) << top;
    before = now;
  }
  Gradients none;
  EXPECT_NEAR(before, imitation_gradient(model, teacher, ids, false, none), 1e-5);
}

TEST_F(TaughtGradient, RefusesRowsThatDoNotFit) {
  Gradients none;
  const TopTokens rows = top_tokens(teacher, to_tensor({1, 2, 3}), 4);
  EXPECT_THROW(taught_gradient(model, rows, ids, false, none), std::invalid_argument);
  EXPECT_THROW(top_tokens(teacher, ids, vocabulary + 1), std::invalid_argument);
  EXPECT_THROW(top_tokens(teacher, ids, 0), std::invalid_argument);
}

}  // namespace
}  // namespace dofla
