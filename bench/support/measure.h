// The machine's own ceilings, and the clock. Machines are shared and noisy: a figure is a ratio to
// something measured in the same run, and the best of several runs is the one least disturbed.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <fstream>
#include <span>
#include <string>
#include <vector>

#include <dnnl.h>

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

// Seconds in which all cores together read the bytes once, and do nothing else with them.
inline double read_seconds(const std::vector<std::span<const std::byte>>& memory) {
  constexpr size_t kBlock = size_t{1} << 19;
  std::vector<std::span<const std::byte>> blocks;
  for (const std::span<const std::byte> part : memory)
    for (size_t at = 0; at < part.size(); at += kBlock)
      blocks.push_back(part.subspan(at, std::min(kBlock, part.size() - at)));
  volatile uint64_t sink = 0;
  return best_seconds(20, [&] {
    uint64_t total = 0;
#pragma omp parallel for schedule(static) reduction(+ : total)
    for (const std::span<const std::byte> block : blocks) {
      const auto* words = reinterpret_cast<const uint64_t*>(block.data());
      uint64_t lanes[16] = {};
      for (size_t i = 0; i + 16 <= block.size() / sizeof(uint64_t); i += 16)
        for (size_t j = 0; j < 16; ++j) lanes[j] += words[i + j];
      for (const uint64_t lane : lanes) total += lane;
    }
    sink = total;
  });
}

// The most memory this process has held, in bytes; mapped files count as far as they were touched.
inline int64_t peak_bytes() {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);)
    if (line.starts_with("VmHWM:")) return std::stoll(line.substr(6)) * 1024;
  return 0;
}

}  // namespace dofla::bench
