// Dense layers of a few rows on a GPU, as decoding has them: a recorded chain of layers of GPT-2
// small's sizes, whose weights together are far too many for the cache, each with its bias and with
// the norm ahead of it or the residual after it. Microseconds a layer, and the share of 4.0 TB/s at
// which it reads its weights.
#include <algorithm>
#include <vector>

#include "bench/support/measure.h"
#include "dofla/core/device_recording.h"
#include "dofla/core/error.h"
#include "dofla/ops/dense.h"

namespace dofla::bench {
namespace {

constexpr double kBandwidth = 4.0e12;

struct Size {
  int64_t inputs, outputs;
  bool norm;  // else a residual
  DType result;
};

void measure(const Device& gpu, int64_t rows, const Size& size) {
  const double bytes = 2.0 * static_cast<double>(size.inputs * size.outputs);
  const int64_t copies = std::max<int64_t>(2, static_cast<int64_t>(3e8 / bytes));
  const Tensor vector = Tensor::zeros({size.inputs}, DType::kF32, gpu);
  const Tensor residual = Tensor::zeros({rows, size.outputs}, DType::kBF16, gpu);
  std::vector<Dense> layers;
  for (int64_t i = 0; i < copies; ++i) {
    Dense layer;
    layer.linear.weight = Tensor::zeros({size.outputs, size.inputs}, DType::kBF16, gpu);
    layer.linear.bias = Tensor::zeros({size.outputs}, DType::kBF16, gpu);
    if (size.norm) layer.norm = {vector, vector, 1e-5, true};
    if (!size.norm) layer.residual = residual;
    layers.push_back(layer);
  }
  const Tensor x = Tensor::zeros({rows, size.inputs}, DType::kBF16, gpu);
  const auto work = [&] {
    for (const Dense& layer : layers) dense(x, layer, size.result);
  };
  work();
  Recording recording(gpu, work);
  const double seconds = best_seconds(5,
                                      [&] {
                                        recording.replay();
                                        gpu.synchronize();
                                      }) /
                         static_cast<double>(copies);
  fmt::print("{:2} rows, {:4} to {:5} {:7.2f} us, {:3.0f} %\n", rows, size.inputs, size.outputs,
             1e6 * seconds, 100 * bytes / kBandwidth / seconds);
}

void run() {
  const Device gpu = Device::cuda();
  fmt::print("{}\n", gpu.description());
  const Size sizes[] = {{768, 2304, true, DType::kBF16},
                        {768, 768, false, DType::kBF16},
                        {768, 3072, true, DType::kBF16},
                        {3072, 768, false, DType::kBF16},
                        {768, 50257, true, DType::kF32}};
  for (const int64_t rows : {1, 2, 4, 8, 16, 64})
    for (const Size& size : sizes) measure(gpu, rows, size);
}

}  // namespace
}  // namespace dofla::bench

int main() {
  try {
    dofla::bench::run();
  } catch (const dofla::Error& error) {
    fmt::print("skipped: {}\n", error.what());
  }
}
