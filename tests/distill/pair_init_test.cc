#include "dofla/distill/pair_init.h"

#include <algorithm>
#include <cmath>

#include <gtest/gtest.h>

#include "dofla/core/random.h"
#include "dofla/plan/allocate.h"

namespace dofla {
namespace {

const ModelIdentity kGrouped = {"llama", 1, 2, 4};  // two query heads share one key head

Tensor random_heads(int64_t heads, int64_t tokens, uint64_t seed) {
  Random random(seed);
  Tensor x({1, heads, tokens, 4});
  for (int64_t i = 0; i < x.count(); ++i) x.data<float>()[i] = static_cast<float>(random.normal());
  return x;
}

const float* row(const Tensor& x, int64_t head, int64_t token) {
  return x.data<float>() + (head * x.size(2) + token) * x.size(3);
}

// Whether z · D^¼ is a query of the head plus a key that this query sees.
bool is_pair(const float* z, const Tensor& q, const Tensor& k, int64_t head, int64_t block = 1) {
  const double quarter = std::pow(4.0, 0.25);
  for (int64_t i = 0; i < q.size(2); ++i)
    for (int64_t j = 0; j / block <= i / block; ++j) {
      double off = 0;
      for (int64_t c = 0; c < 4; ++c)
        off += std::abs(quarter * z[c] - row(q, head, i)[c] - row(k, 0, j)[c]);
      if (off < 1e-5) return true;
    }
  return false;
}

TEST(PairInit, EveryFeatureIsAQueryPlusAKeyItSees) {
  const Tensor q = random_heads(2, 9, 1), k = random_heads(1, 9, 2);
  PairSampler sampler(fixed_plan(kGrouped, 7), 1, 5);
  sampler.offer(0, {q, k});
  const Features features = sampler.features().layers[0];
  ASSERT_EQ(features.total(), 14);
  for (int64_t m = 0; m < 14; ++m) {
    const float* z = std::as_const(features.z).data<float>() + 4 * m;
    EXPECT_TRUE(is_pair(z, q, k, m / 7)) << m;
    double square = 0;
    for (int64_t c = 0; c < 4; ++c) square += double{z[c]} * z[c];
    EXPECT_NEAR(std::as_const(features.log_alpha).data<float>()[m], -square / 2, 1e-5);
  }
}

TEST(PairInit, AQuerySeesTheKeysOfItsBlock) {
  const Tensor q = random_heads(2, 12, 1), k = random_heads(1, 12, 2);
  PairSampler sampler(fixed_plan(kGrouped, 40), 1, 5);
  EXPECT_THROW(sampler.offer(0, {q, k, {}, 5}), std::invalid_argument);
  sampler.offer(0, {q, k, {}, 4});
  const Features features = sampler.features().layers[0];
  int64_t later = 0;  // keys after the query
  for (int64_t m = 0; m < 80; ++m) {
    const float* z = std::as_const(features.z).data<float>() + 4 * m;
    EXPECT_TRUE(is_pair(z, q, k, m / 40, 4)) << m;
    later += !is_pair(z, q, k, m / 40);
  }
  EXPECT_GT(later, 5);
}

// The features of a key head come from the pairs of all its query heads, which start alike.
TEST(PairInit, AGroupDrawsFromAllItsQueryHeads) {
  const Tensor q = random_heads(2, 9, 1), k = random_heads(1, 9, 2);
  PairSampler sampler(fixed_plan(kGrouped, 20, 1), 1, 5);
  sampler.offer(0, {q, k});
  const FeatureSet set = sampler.features(FeatureMap::kUntied);
  EXPECT_EQ(set.map, FeatureMap::kUntied);
  const Features& features = set.layers[0];
  ASSERT_EQ(features.counts, std::vector<int64_t>{20});
  ASSERT_EQ(features.group(), 2);
  int64_t of_first = 0, of_second = 0;
  for (int64_t m = 0; m < 20; ++m) {
    const float* z = features.z.data<float>() + 4 * m;
    const bool first = is_pair(z, q, k, 0), second = is_pair(z, q, k, 1);
    EXPECT_TRUE(first || second) << m;
    of_first += first, of_second += second;
    for (int64_t head = 0; head < 2; ++head)
      EXPECT_TRUE(std::equal(z, z + 4, features.u.data<float>() + (head * 20 + m) * 4));
  }
  EXPECT_GT(of_first, 3);
  EXPECT_GT(of_second, 3);
  EXPECT_EQ(features.norm_weight.data<float>()[0], 1);
}

TEST(PairInit, AKeyThatTakesAllTheAttentionIsTheOneDrawn) {
  Tensor q = random_heads(2, 6, 1), k = random_heads(1, 6, 2);
  for (int64_t i = 0; i < q.count(); ++i) q.data<float>()[i] = 1;
  for (int64_t c = 0; c < 4; ++c) k.data<float>()[c] = 100;  // the first key, seen by every query
  PairSampler sampler(fixed_plan(kGrouped, 5), 1, 5);
  sampler.offer(0, {q, k});
  const Features features = sampler.features().layers[0];
  const float expected = static_cast<float>(101 / std::pow(4.0, 0.25));
  for (int64_t i = 0; i < features.z.count(); ++i)
    EXPECT_NEAR(std::as_const(features.z).data<float>()[i], expected, 1e-4);
}

TEST(PairInit, SequencesShareTheDrawEvenly) {
  PairSampler sampler(fixed_plan(kGrouped, 5), 2, 5);
  sampler.offer(0, {random_heads(2, 6, 1), random_heads(1, 6, 2)});
  EXPECT_THROW(sampler.features(), std::invalid_argument);  // one sequence is still to come
  const Tensor q = random_heads(2, 6, 3), k = random_heads(1, 6, 4);
  sampler.offer(0, {q, k});
  const Features features = sampler.features().layers[0];
  int64_t from_second = 0;
  for (int64_t m = 0; m < 5; ++m)
    from_second += is_pair(std::as_const(features.z).data<float>() + 4 * m, q, k, 0);
  EXPECT_EQ(from_second, 2);  // of five, the first sequence gave three
}

}  // namespace
}  // namespace dofla
