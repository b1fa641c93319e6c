#include "dofla/dof/sample.h"

#include <cmath>
#include <numeric>
#include <set>

#include <gtest/gtest.h>

#include "dofla/core/parallel.h"
#include "tests/support/matrices.h"

namespace dofla {
namespace {

ModelConfig shape(int64_t heads, int64_t kv_heads, int64_t head_size) {
  ModelConfig config;
  config.layers = 2;
  config.heads = heads;
  config.kv_heads = kv_heads;
  config.head_size = head_size;
  return config;
}

std::vector<float> rows(const Tensor& tensor) {
  return {tensor.data<float>(), tensor.data<float>() + tensor.count()};
}

TEST(Reservoir, EveryElementIsEquallyLikely) {
  constexpr int64_t kCapacity = 5, kLength = 40, kTrials = 20000;
  std::vector<int64_t> kept(kLength, 0);
  for (uint64_t trial = 0; trial < kTrials; ++trial) {
    Reservoir reservoir(kCapacity, Random(1, trial));
    std::vector<int64_t> slots(kCapacity, -1);
    while (reservoir.next() < kLength) {
      const int64_t element = reservoir.next();
      slots[static_cast<size_t>(reservoir.take())] = element;
    }
    EXPECT_EQ(std::set<int64_t>(slots.begin(), slots.end()).size(), slots.size());
    for (const int64_t element : slots) ++kept[static_cast<size_t>(element)];
  }
  // Each count is binomial; five standard deviations over forty elements.
  const double p = static_cast<double>(kCapacity) / kLength;
  const double deviation = std::sqrt(kTrials * p * (1 - p));
  for (const int64_t count : kept)
    EXPECT_NEAR(static_cast<double>(count), kTrials * p, 5 * deviation);
}

TEST(QueryKeySampler, TakesEverythingWhenThereIsNoMore) {
  QueryKeySampler sampler(shape(1, 1, 2), {.samples = 4, .draws = 1, .seed = 3});
  const Tensor q = test::gaussian({1, 1, 2, 2}, 1, 1), k = test::gaussian({1, 1, 2, 2}, 1, 2);
  sampler.offer(0, q, k);
  const float* from_q = q.data<float>();
  const float* from_k = k.data<float>();
  EXPECT_EQ(rows(sampler.sample(0, 0, 0)),  // token by token, query before key
            (std::vector<float>{from_q[0], from_q[1], from_k[0], from_k[1], from_q[2], from_q[3],
                                from_k[2], from_k[3]}));
}

// Token by token, the queries of a group each before the key that they share.
TEST(QueryKeySampler, AKeyHeadPoolsItsQueryHeads) {
  QueryKeySampler sampler(shape(4, 2, 1), {.samples = 8, .draws = 1, .seed = 3, .heads = 2});
  const Tensor q = test::gaussian({1, 4, 2, 1}, 1, 1), k = test::gaussian({1, 2, 2, 1}, 1, 2);
  sampler.offer(0, q, k);
  const float* from_q = q.data<float>();  // [4, 2]
  const float* from_k = k.data<float>();  // [2, 2]
  EXPECT_EQ(rows(sampler.sample(0, 1, 0)),
            (std::vector<float>{from_q[4], from_k[2], from_q[6], from_k[2], from_q[5], from_k[3],
                                from_q[7], from_k[3]}));
  EXPECT_THROW(sampler.sample(0, 2, 0), std::invalid_argument);
  EXPECT_THROW(QueryKeySampler(shape(4, 2, 1), {.samples = 8, .heads = 3}), std::invalid_argument);
}

TEST(QueryKeySampler, SamplesAreRowsOfTheirOwnHead) {
  const int64_t B = 3, H = 4, Hkv = 2, T = 20, D = 3;
  QueryKeySampler sampler(shape(H, Hkv, D), {.samples = 30, .draws = 2, .seed = 3});
  const Tensor q = test::gaussian({B, H, T, D}, 1, 1), k = test::gaussian({B, Hkv, T, D}, 1, 2);
  sampler.offer(1, q, k);
  for (int64_t h = 0; h < H; ++h) {
    std::set<std::vector<float>> vectors;
    for (int64_t b = 0; b < B; ++b)
      for (int64_t t = 0; t < T; ++t) {
        const float* query = q.data<float>() + ((b * H + h) * T + t) * D;
        const float* key = k.data<float>() + ((b * Hkv + h / 2) * T + t) * D;
        vectors.emplace(query, query + D);
        vectors.emplace(key, key + D);
      }
    for (int64_t r = 0; r < 2; ++r) {
      std::set<std::vector<float>> found;
      const Tensor sample = sampler.sample(1, h, r);
      for (int64_t j = 0; j < 30; ++j) {
        const float* row = sample.data<float>() + j * D;
        found.emplace(row, row + D);
      }
      EXPECT_EQ(found.size(), 30u) << "a vector was taken twice";
      for (const auto& row : found) EXPECT_TRUE(vectors.contains(row));
    }
  }
  EXPECT_NE(rows(sampler.sample(1, 0, 0)), rows(sampler.sample(1, 0, 1)));
}

TEST(QueryKeySampler, SameForAnyBatchSplitAndNumberOfThreads) {
  const Tensor q = test::gaussian({4, 2, 50, 8}, 1, 1), k = test::gaussian({4, 1, 50, 8}, 1, 2);
  const int before = thread_count();
  std::vector<std::vector<float>> first;
  for (const int64_t batch : {4, 2, 1})
    for (const int threads : {1, 3}) {
      omp_set_num_threads(threads);
      QueryKeySampler sampler(shape(2, 1, 8), {.samples = 16, .draws = 3, .seed = 7});
      const Observer observer = sampler.observer();
      for (int64_t b = 0; b < 4; b += batch)
        for (const int64_t layer : {0, 1})
          observer(layer, q.slice(b, b + batch), k.slice(b, b + batch), k.slice(b, b + batch));
      std::vector<std::vector<float>> found;
      for (int64_t i = 0; i < 12; ++i)
        found.push_back(rows(sampler.sample(i / 6, i / 3 % 2, i % 3)));
      if (first.empty()) first = found;
      EXPECT_EQ(found, first) << "batches of " << batch << ", " << threads << " threads";
    }
  omp_set_num_threads(before);
  EXPECT_EQ(std::set<std::vector<float>>(first.begin(), first.end()).size(), first.size());
}

TEST(QueryKeySampler, SaysWhenTheTextIsTooShort) {
  QueryKeySampler sampler(shape(1, 1, 2), {.samples = 9, .draws = 1, .seed = 0});
  sampler.offer(0, Tensor::zeros({1, 1, 4, 2}), Tensor::zeros({1, 1, 4, 2}));
  try {
    sampler.sample(0, 0, 0);
    FAIL() << "expected an error";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("only 8 queries and keys"), std::string::npos);
  }
}

TEST(QueryKeySampler, RefusesMisuse) {
  EXPECT_THROW(QueryKeySampler(shape(1, 1, 2), {.samples = 0}), std::invalid_argument);
  EXPECT_THROW(QueryKeySampler(shape(1, 1, 2), {.samples = 1, .draws = 0}), std::invalid_argument);
  QueryKeySampler sampler(shape(2, 1, 2), {.samples = 1});
  EXPECT_THROW(sampler.offer(2, Tensor({1, 2, 4, 2}), Tensor({1, 1, 4, 2})), std::invalid_argument);
  EXPECT_THROW(sampler.offer(0, Tensor({1, 2, 4, 2}), Tensor({1, 2, 4, 2})), std::invalid_argument);
  EXPECT_THROW(sampler.sample(0, 2, 0), std::invalid_argument);
}

}  // namespace
}  // namespace dofla
