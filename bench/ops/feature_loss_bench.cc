// The layerwise losses with gradients for all heads of GPT-2 small, beside the matrix products they
// consist of: 12 layers of 12 heads, 1024 tokens, head width 64, 64 features, causal.
#include <chrono>

#include <benchmark/benchmark.h>
#include <dnnl.h>

#include "dofla/core/parallel.h"
#include "dofla/core/random.h"
#include "dofla/ops/feature_loss.h"

namespace dofla {
namespace {

constexpr int64_t kLayers = 12, kHeads = 12, kTokens = 1024, kWidth = 64, kCount = 64;

Tensor normal(const Shape& shape, double scale) {
  Random random(1);
  Tensor out(shape);
  for (int64_t i = 0; i < out.count(); ++i)
    out.data<float>()[i] = static_cast<float>(scale * random.normal());
  return out;
}

// Four products of 2·64 operations for each pair of the lower triangle: q·k, φ(q)·φ(k) and the
// gradients of both sides.
constexpr double kOperations =
    1.0 * kLayers * kHeads * (kTokens * (kTokens + 1) / 2) * (2 * kWidth + 3 * 2 * kCount);

// Operations per second of a large product on all cores, measured once.
double sgemm_rate() {
  static const double rate = [] {
    const int64_t n = 1536;
    const Tensor a = normal({n, n}, 1), b = normal({n, n}, 1);
    Tensor c({n, n});
    double best = 1e9;
    for (int round = 0; round < 8; ++round) {
      const auto start = std::chrono::steady_clock::now();
      dnnl_sgemm('N', 'N', n, n, n, 1.0f, a.data<float>(), n, b.data<float>(), n, 0.0f,
                 c.data<float>(), n);
      best = std::min(
          best, std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
    }
    return 2.0 * n * n * n / best;
  }();
  return rate;
}

void all_heads(benchmark::State& state, FeatureLossKind kind, double scale) {
  const Tensor q = normal({1, kHeads, kTokens, kWidth}, scale);
  const Tensor k = normal({1, kHeads, kTokens, kWidth}, scale);
  const Features features{std::vector<int64_t>(kHeads, kCount),
                          normal({kHeads * kCount, kWidth}, 1), Tensor::zeros({kHeads * kCount})};
  double best = 1e9;
  for (auto _ : state) {
    const auto start = std::chrono::steady_clock::now();
    for (int64_t layer = 0; layer < kLayers; ++layer)
      benchmark::DoNotOptimize(feature_loss(q, k, features, {.kind = kind}).total());
    best = std::min(
        best, std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
  }
  state.counters["best_ms"] = best * 1e3;
  state.counters["Gflop"] = kOperations / 1e9;
  state.counters["sgemm_Gflop/s"] = sgemm_rate() / 1e9;
  state.counters["of_sgemm"] = kOperations / best / sgemm_rate();
  state.counters["times_sgemm"] = best * sgemm_rate() / kOperations;
  state.counters["threads"] = thread_count();
}

BENCHMARK_CAPTURE(all_heads, softmax, FeatureLossKind::kSoftmax, 1.0)
    ->Unit(benchmark::kMillisecond)
    ->UseRealTime()
    ->MeasureProcessCPUTime();
BENCHMARK_CAPTURE(all_heads, l2, FeatureLossKind::kL2, 1.0)
    ->Unit(benchmark::kMillisecond)
    ->UseRealTime()
    ->MeasureProcessCPUTime();
BENCHMARK_CAPTURE(all_heads, attention_mse, FeatureLossKind::kAttentionMse, 1.0)
    ->Unit(benchmark::kMillisecond)
    ->UseRealTime()
    ->MeasureProcessCPUTime();
// Key and query norms as in the hardest layers, where factors vanish and pairs are computed alone.
BENCHMARK_CAPTURE(all_heads, softmax_large_norms, FeatureLossKind::kSoftmax, 4.0)
    ->Unit(benchmark::kMillisecond)
    ->UseRealTime()
    ->MeasureProcessCPUTime();

}  // namespace
}  // namespace dofla

BENCHMARK_MAIN();
