// Linear against softmax attention, and exact keys with features: 12 heads of 64 with 64 features
// or 64 keys and 64 features, one layer, prefill and decode. Memory is what the layer keeps for the
// next token: the state, or the keys and values.
#include <benchmark/benchmark.h>

#include "dofla/core/parallel.h"
#include "dofla/core/random.h"
#include "dofla/ops/hybrid_attention.h"
#include "dofla/ops/softmax_attention.h"

namespace dofla {
namespace {

constexpr int64_t kHeads = 12, kWidth = 64, kCount = 64;
const std::vector<int64_t> kLengths = {1024, 4096, 16384, 65536};

Tensor normal(const Shape& shape) {
  Random random(1);
  Tensor out(shape);
  float* data = out.data<float>();
  for (int64_t i = 0; i < out.count(); ++i) data[i] = static_cast<float>(random.normal());
  return out;
}

Features features() {
  return {std::vector<int64_t>(kHeads, kCount), normal({kHeads * kCount, kWidth}),
          Tensor::zeros({kHeads * kCount})};
}

void report(benchmark::State& state, int64_t tokens, int64_t bytes) {
  state.counters["tokens/s"] = benchmark::Counter(static_cast<double>(tokens),
                                                  benchmark::Counter::kIsIterationInvariantRate);
  state.counters["kept_KiB"] = static_cast<double>(bytes) / 1024;
  state.counters["threads"] = thread_count();
}

void linear_prefill(benchmark::State& state) {
  const int64_t tokens = state.range(0);
  const Tensor x = normal({1, kHeads, tokens, kWidth});
  const Features f = features();
  int64_t bytes = 0;
  for (auto _ : state) {
    LinearAttentionState memory = new_linear_attention_state(1, f);
    benchmark::DoNotOptimize(linear_attention(x, x, x, f, &memory, state.range(1)).raw());
    bytes = memory.bytes();
  }
  report(state, tokens, bytes);
}

void linear_backward(benchmark::State& state) {
  const int64_t tokens = state.range(0);
  const Tensor x = normal({1, kHeads, tokens, kWidth});
  const Tensor gradient = normal({1, tokens, kHeads, kWidth});
  const Features f = features();
  for (auto _ : state)
    benchmark::DoNotOptimize(linear_attention_backward(x, x, x, f, gradient).q.raw());
  report(state, tokens, 0);
}

void softmax_prefill(benchmark::State& state) {
  const int64_t tokens = state.range(0);
  const Tensor x = normal({1, kHeads, tokens, kWidth});
  for (auto _ : state) benchmark::DoNotOptimize(softmax_attention(x, x, x, tokens).raw());
  report(state, tokens, 2 * x.bytes());
}

// One token after state.range(0) others.
void linear_decode(benchmark::State& state) {
  const Features f = features();
  LinearAttentionState memory = new_linear_attention_state(1, f);
  for (int64_t seen = 0; seen < state.range(0); seen += 1024) {
    const Tensor x = normal({1, kHeads, 1024, kWidth});
    linear_attention(x, x, x, f, &memory);
  }
  const Tensor token = normal({1, kHeads, 1, kWidth});
  for (auto _ : state)
    benchmark::DoNotOptimize(linear_attention(token, token, token, f, &memory).raw());
  report(state, 1, memory.bytes());
}

HybridAttentionState after(int64_t tokens, const Features& f, const ExactKeys& exact) {
  HybridAttentionState memory =
      new_hybrid_attention_state(1, kHeads, kWidth, DType::kF32, {}, f, exact);
  const Tensor x = normal({1, kHeads, 1024, kWidth});
  for (int64_t seen = 0; seen < tokens; seen += 1024)
    hybrid_attention(x, x, x, f, exact, &memory, seen);
  return memory;
}

void hybrid_prefill(benchmark::State& state) {
  const int64_t tokens = state.range(0);
  const Tensor x = normal({1, kHeads, tokens, kWidth});
  const Features f = features();
  const ExactKeys exact = {.keys = kCount};
  for (auto _ : state) benchmark::DoNotOptimize(hybrid_attention(x, x, x, f, exact).raw());
  report(state, tokens, 0);
}

void hybrid_decode(benchmark::State& state) {
  const Features f = features();
  const ExactKeys exact = {.keys = kCount};
  HybridAttentionState memory = after(state.range(0), f, exact);
  const Tensor token = normal({1, kHeads, 1, kWidth});
  Tensor seen({1}, DType::kI64);
  *seen.data<int64_t>() = state.range(0);
  for (auto _ : state) {
    benchmark::DoNotOptimize(
        hybrid_attention_step(token, token, token, f, exact, memory, seen).raw());
    ++*seen.data<int64_t>();
  }
  report(state, 1, memory.bytes());
}

void softmax_decode(benchmark::State& state) {
  const Tensor seen = normal({1, kHeads, state.range(0), kWidth});
  const Tensor token = normal({1, kHeads, 1, kWidth});
  for (auto _ : state)
    benchmark::DoNotOptimize(softmax_attention(token, seen, seen, state.range(0)).raw());
  report(state, 1, 2 * seen.bytes());
}

BENCHMARK(linear_prefill)
    ->ArgNames({"tokens", "chunk"})
    ->ArgsProduct({kLengths, {kLinearAttentionChunk}})
    ->Args({4096, 32})
    ->Args({4096, 128})
    ->Unit(benchmark::kMillisecond)
    ->UseRealTime()
    ->MeasureProcessCPUTime();
BENCHMARK(softmax_prefill)
    ->ArgName("tokens")
    ->ArgsProduct({kLengths})
    ->Unit(benchmark::kMillisecond)
    ->UseRealTime()
    ->MeasureProcessCPUTime();
BENCHMARK(linear_backward)
    ->ArgName("tokens")
    ->Arg(1024)
    ->Unit(benchmark::kMillisecond)
    ->UseRealTime()
    ->MeasureProcessCPUTime();
BENCHMARK(linear_decode)
    ->ArgName("position")
    ->ArgsProduct({kLengths})
    ->Unit(benchmark::kMicrosecond)
    ->UseRealTime()
    ->MeasureProcessCPUTime();
BENCHMARK(hybrid_prefill)
    ->ArgName("tokens")
    ->ArgsProduct({kLengths})
    ->Unit(benchmark::kMillisecond)
    ->UseRealTime()
    ->MeasureProcessCPUTime();
BENCHMARK(hybrid_decode)
    ->ArgName("position")
    ->ArgsProduct({kLengths})
    ->Unit(benchmark::kMicrosecond)
    ->UseRealTime()
    ->MeasureProcessCPUTime();
BENCHMARK(softmax_decode)
    ->ArgName("position")
    ->Arg(1024)
    ->Arg(4096)
    ->Arg(16384)
    ->Arg(65536)
    ->Unit(benchmark::kMicrosecond)
    ->UseRealTime()
    ->MeasureProcessCPUTime();

}  // namespace
}  // namespace dofla

BENCHMARK_MAIN();
