// The machine's own ceilings, and the clock. Machines are shared and noisy: a figure is a ratio to
// something measured in the same run, and the best of several runs is the one least disturbed.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <fstream>
#include <string>
#include <vector>

#include <dnnl.h>

#include "dofla/core/file.h"
#include "dofla/core/parallel.h"

namespace dofla::bench {

template <class Work>
double best_seconds(int runs, const Work& work) {
  double best = 1e300;
  for (int i = 0; i < runs; ++i) {
    const auto start = std::chrono::steady_clock::now();
    work();
    const std::chrono::duration<double> passed = std::chrono::steady_clock::now() - start;
    best = std::min(best, passed.count());
  }
  return best;
}

// Floating-point operations a second of a large single-precision matrix product.
inline double sgemm_rate() {
  constexpr int64_t n = 1024;
  std::vector<float> a(n * n, 1), b(n * n, 1), c(n * n);
  const auto product = [&] {
    dnnl_sgemm('N', 'N', n, n, n, 1, a.data(), n, b.data(), n, 0, c.data(), n);
  };
  return 2.0 * n * n * n / best_seconds(20, product);
}

// Bytes a second that all cores together read from memory.
inline double read_bandwidth() {
  const std::vector<uint64_t> words(int64_t{1} << 25, 1);  // 256 MiB: beyond every cache
  constexpr int64_t kBlock = 1 << 16;
  volatile uint64_t sink = 0;
  const double seconds = best_seconds(10, [&] {
    uint64_t total = 0;
#pragma omp parallel for schedule(static) reduction(+ : total)
    for (int64_t first = 0; first < static_cast<int64_t>(words.size()); first += kBlock) {
      uint64_t lanes[16] = {};
      for (int64_t i = first; i < first + kBlock; i += 16)
        for (int64_t j = 0; j < 16; ++j) lanes[j] += words[static_cast<size_t>(i + j)];
      for (uint64_t lane : lanes) total += lane;
    }
    sink = total;
  });
  return static_cast<double>(words.size() * sizeof(uint64_t)) / seconds;
}

// The most memory this process has held, in bytes; mapped files count as far as they were touched.
inline int64_t peak_bytes() {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);)
    if (line.starts_with("VmHWM:")) return std::stoll(line.substr(6)) * 1024;
  return 0;
}

// A model that is too large for the repository: a folder under $DOFLA_MODELS, or empty.
inline fs::path large_model(const std::string& name) {
  const char* models = std::getenv("DOFLA_MODELS");
  const fs::path folder = models == nullptr ? fs::path() : fs::path(models) / name;
  return models != nullptr && fs::exists(folder / "config.json") ? folder : fs::path();
}

}  // namespace dofla::bench
