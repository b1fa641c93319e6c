// Milliseconds a sample for twelve layers: batch 32, 12 heads of 64, 1024 tokens, 64 features.
#include "bench/support/measure.h"
#include "dofla/core/error.h"
#include "dofla/core/random.h"
#include "dofla/distill/feature_map.h"
#include "dofla/ops/linear_attention.h"
#include "dofla/ops/softmax_attention.h"

namespace dofla::bench {
namespace {

void run(int64_t batch, int64_t heads, int64_t tokens, int64_t width) {
  const Device gpu = Device::cuda();
  Random random(1);
  const auto normal = [&](Shape shape) {
    Tensor x(std::move(shape));
    for (int64_t i = 0; i < x.count(); ++i)
      x.data<float>()[i] = static_cast<float>(random.normal());
    return x;
  };
  const auto there = [&](Shape shape) { return normal(std::move(shape)).to(DType::kBF16).to(gpu); };
  const Tensor q = there({batch, heads, tokens, width}), k = there({batch, heads, tokens, width}),
               v = there({batch, heads, tokens, width}), g = there({batch, tokens, heads, width});
  Features features;
  features.counts.assign(static_cast<size_t>(heads), 64);
  features.z = normal({heads * 64, width}).to(gpu);
  features.log_alpha = Tensor::zeros({heads * 64}, DType::kF32, gpu);
  AttentionTape softmax, linear;
  softmax_attention(q, k, v, tokens, &softmax);
  linear_attention(q, k, v, features, nullptr, kLinearAttentionChunk, &linear);
  const auto time = [&](const char* what, double operations, const auto& work) {
    work();
    gpu.synchronize();
    constexpr int kRuns = 20;
    const double seconds = best_seconds(5,
                                        [&] {
                                          for (int i = 0; i < kRuns; ++i) work();
                                          gpu.synchronize();
                                        }) /
                           kRuns;
    fmt::print("D {:3} {:28} {:8.4f} ms/sample for 12 layers, {:6.0f} TFLOP/s\n", width, what,
               1e3 * seconds * 12 / static_cast<double>(batch), operations / seconds / 1e12);
  };
  const double pairs = 2.0 * static_cast<double>(batch * heads * tokens * tokens * width);
  time("softmax forward", pairs, [&] { softmax_attention(q, k, v, tokens); });
  time("softmax forward with tape", pairs, [&] { softmax_attention(q, k, v, tokens, &softmax); });
  time("softmax backward", 2.5 * pairs, [&] { softmax_attention_backward(q, k, v, g, softmax); });
  time("linear forward", 0, [&] { linear_attention(q, k, v, features); });
  time("linear backward", 0,
       [&] { linear_attention_backward(q, k, v, features, g, kLinearAttentionChunk, linear); });
}

}  // namespace
}  // namespace dofla::bench

int main() {
  try {
    dofla::bench::run(32, 12, 1024, 64);
    dofla::bench::run(16, 12, 1024, 128);
  } catch (const dofla::Error& error) {
    fmt::print("skipped: {}\n", error.what());
  }
}
