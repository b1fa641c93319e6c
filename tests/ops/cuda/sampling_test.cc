// Tokens drawn on a GPU against the definition in double precision: sorted, cut and summed up.
#include "dofla/ops/sampling.h"

#include <algorithm>
#include <limits>
#include <numeric>

#include "dofla/core/random.h"
#include "dofla/generate/sampler.h"
#include "tests/support/gpu.h"

namespace dofla {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

class CudaSampling : public test::OnGpu {
 protected:
  // How far the random number is from the share of the token that was drawn, of the whole.
  static double miss(const float* logits, int64_t count, const TokenDraw& draw, int64_t drawn) {
    const double top = *std::max_element(logits, logits + count);
    std::vector<int64_t> order(static_cast<size_t>(count));
    std::iota(order.begin(), order.end(), int64_t{0});
    const auto weight = [&](int64_t id) { return std::exp((logits[id] - top) / draw.temperature); };
    const bool some = draw.top_k > 0 && draw.top_k < count;
    if (some || draw.top_p < 1) {
      std::ranges::stable_sort(order, std::greater<>(), [&](int64_t id) { return logits[id]; });
      if (some) order.resize(static_cast<size_t>(draw.top_k));
      double total = 0, kept = 0;
      for (const int64_t id : order) total += weight(id);
      size_t keep = 0;
      while (keep < order.size() && kept < draw.top_p * total) kept += weight(order[keep++]);
      order.resize(keep);
      std::ranges::reverse(order);  // the least likely first
    }
    double sum = 0, before = 0, after = 0;
    for (const int64_t id : order) {
      if (id == drawn) before = sum;
      sum += weight(id);
      if (id == drawn) after = sum;
    }
    // A token at the edge of what is kept may be just outside of it.
    if (after == 0) return weight(drawn) < 1.001 * weight(order.front()) ? draw.uniform : 1;
    return std::max({0.0, before / sum - draw.uniform, draw.uniform - after / sum});
  }
};

TEST_F(CudaSampling, DrawsTheTokenThatTheRandomNumberMeets) {
  Random random(5);
  for (const int64_t count : {1, 7, 1000, 50257}) {
    std::vector<TokenDraw> draws;
    std::vector<double> spreads;
    for (const double spread : {0.0, 0.1, 2.0, 6.0})
      for (const double temperature : {0.2, 0.8, 1.5})
        for (const int64_t top_k : {0, 1, 40, 6000})
          for (const double top_p : {0.1, 0.95, 1.0}) {
            draws.push_back({temperature, top_k, top_p, random.uniform()});
            spreads.push_back(spread);
          }
    Tensor logits({std::ssize(draws) + 3, count});
    for (int64_t i = 0; i < logits.count(); ++i) {
      const auto row = static_cast<size_t>(i / count);
      const double spread = row < spreads.size() ? spreads[row] : 1;
      logits.data<float>()[i] = static_cast<float>(spread * random.normal());
    }
    const std::vector<int64_t> drawn = draw_tokens(logits.to(gpu), draws);
    ASSERT_EQ(drawn.size(), draws.size());
    for (size_t r = 0; r < draws.size(); ++r) {
      ASSERT_GE(drawn[r], 0);
      ASSERT_LT(drawn[r], count);
      EXPECT_LE(
          miss(logits.data<float>() + static_cast<int64_t>(r) * count, count, draws[r], drawn[r]),
          1e-4)
          << count << " tokens, spread " << spreads[r] << ", temperature " << draws[r].temperature
          << ", top-k " << draws[r].top_k << ", top-p " << draws[r].top_p << ", uniform "
          << draws[r].uniform;
    }
  }
}

// The same tokens as a Sampler draws on the CPU, but for those that rounding decides.
TEST_F(CudaSampling, FollowsTheSampler) {
  constexpr int64_t kRows = 512, kCount = 5000;
  Random random(6);
  Tensor logits({kRows, kCount});
  for (int64_t i = 0; i < logits.count(); ++i)
    logits.data<float>()[i] = static_cast<float>(3 * random.normal());
  std::vector<TokenDraw> draws;
  std::vector<int64_t> expected;
  for (int64_t r = 0; r < kRows; ++r) {
    const SamplerOptions options = {.temperature = 0.3 * static_cast<double>(r % 5),
                                    .top_k = r % 3 == 0 ? 50 : 0,
                                    .top_p = r % 2 == 0 ? 0.9 : 1,
                                    .seed = static_cast<uint64_t>(r)};
    draws.push_back(Sampler(options).next_draw());
    expected.push_back(
        Sampler(options).sample({logits.data<float>() + r * kCount, size_t{kCount}}));
  }
  const std::vector<int64_t> drawn = draw_tokens(logits.to(gpu), draws);
  int64_t different = 0;
  for (size_t r = 0; r < drawn.size(); ++r) different += drawn[r] != expected[r] ? 1 : 0;
  EXPECT_LE(different, 2);
}

TEST_F(CudaSampling, TakesTheFirstOfTheLikeliest) {
  constexpr int64_t kCount = 3000;
  Tensor logits = Tensor::zeros({3, kCount});
  float* row = logits.data<float>();
  row[77] = row[2077] = 1;
  for (int64_t i = kCount; i < 2 * kCount; ++i) row[i] = -5;
  row[2 * kCount + 9] = row[2 * kCount + 8] = 2;
  const std::vector<int64_t> drawn = draw_tokens(
      logits.to(gpu), {{.temperature = 0}, {.temperature = 0}, {.temperature = 1, .top_k = 1}});
  EXPECT_EQ(drawn, (std::vector<int64_t>{77, 0, 8}));
}

TEST_F(CudaSampling, SaysWhereNoTokenCanBeDrawn) {
  constexpr int64_t kCount = 700;
  Tensor logits = Tensor::zeros({5, kCount});
  float* row = logits.data<float>();
  row[3] = std::numeric_limits<float>::quiet_NaN();
  row[kCount + 699] = kInfinity;
  std::fill_n(row + 2 * kCount, kCount, -kInfinity);
  std::fill_n(row + 3 * kCount, kCount, -kInfinity);
  row[3 * kCount + 600] = -1e30f;
  for (const double temperature : {0.0, 1.0}) {
    const std::vector<int64_t> drawn =
        draw_tokens(logits.to(gpu), std::vector<TokenDraw>(5, {.temperature = temperature}));
    EXPECT_EQ(std::vector<int64_t>(drawn.begin(), drawn.begin() + 4),
              (std::vector<int64_t>{-1, -1, -1, 600}));
    EXPECT_EQ(drawn[4], 0);
  }
}

}  // namespace
}  // namespace dofla
