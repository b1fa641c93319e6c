// Dense layers of a few rows on a GPU, as decoding has them: a recorded chain of layers of GPT-2
// small's sizes, whose weights together are far too many for the cache, each with a norm and a
// bias. Microseconds a layer, and the share of 4.0 TB/s at which it reads its weights.
#include <algorithm>
#include <vector>

#include "bench/support/measure.h"
#include "dofla/core/device_recording.h"
#include "dofla/core/error.h"
#include "dofla/ops/decode.h"

namespace dofla::bench {
namespace {

constexpr double kBandwidth = 4.0e12;

void measure(const Device& gpu, int64_t rows, int64_t inputs, int64_t outputs, bool input_major) {
  const double bytes = 2.0 * static_cast<double>(inputs * outputs);
  const int64_t copies = std::max<int64_t>(2, static_cast<int64_t>(3e8 / bytes));
  const Tensor vector = Tensor::zeros({inputs}, DType::kF32, gpu);
  std::vector<Dense> layers;
  for (int64_t i = 0; i < copies; ++i)
    layers.push_back(
        {.linear = {Tensor::zeros(input_major ? Shape{inputs, outputs} : Shape{outputs, inputs},
                                  DType::kBF16, gpu),
                    input_major, Tensor::zeros({outputs}, DType::kBF16, gpu)},
         .norm = {vector, vector, 1e-5, true}});
  const Tensor x = Tensor::zeros({rows, inputs}, DType::kBF16, gpu);
  const auto work = [&] {
    for (const Dense& layer : layers) dense(x, layer);
  };
  work();
  Recording recording(gpu, work);
  const double seconds = best_seconds(5,
                                      [&] {
                                        recording.replay();
                                        gpu.synchronize();
                                      }) /
                         static_cast<double>(copies);
  fmt::print("{:2} rows, {:4} to {:5}, {:12} {:7.2f} us, {:3.0f} %\n", rows, inputs, outputs,
             input_major ? "input-major" : "output-major", 1e6 * seconds,
             100 * bytes / kBandwidth / seconds);
}

void run() {
  const Device gpu = Device::cuda();
  fmt::print("{}\n", gpu.description());
  for (const int64_t rows : {1, 2, 4, 8, 16})
    for (const bool input_major : {true, false})
      for (const auto& [inputs, outputs] : {std::pair<int64_t, int64_t>{768, 2304},
                                            {768, 768},
                                            {768, 3072},
                                            {3072, 768},
                                            {768, 50257}})
        measure(gpu, rows, inputs, outputs, input_major);
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
