// What the sections of the GPU benchmark work on: GPT-2 small, 32 samples of 1024 tokens, 64
// features a head, the same as in bench/peers/pytorch.py.
#pragma once

#include <string>

#include "bench/gpu/figures.h"
#include "bench/support/measure.h"
#include "dofla/features/feature_set.h"
#include "dofla/model/transformer.h"

namespace dofla::bench {

constexpr int64_t kBatch = 32;
constexpr int64_t kTokens = 1024;
constexpr int64_t kFeatures = 64;

struct Workload {
  Device gpu;
  std::string model;  // "gpt2-wiki", or "random weights" where that is not there
  Checkpoint checkpoint;
  Transformer teacher;  // of the checkpoint, on the GPU
  Tensor ids;           // [kBatch, kTokens]
};

Workload make_workload(const Device& gpu);

// As init_features draws them, on the GPU.
FeatureSet random_features(const Workload& work);

// Normal numbers. Large tensors repeat a block of some millions: a GPU takes no notice, and drawing
// each one would take longer than the benchmark.
Tensor random_bf16(const Shape& shape, double deviation, uint64_t seed);

Ceilings measure_ceilings(const Device& gpu);

// Of the best of some runs, each ended by waiting for the GPU.
template <class Run>
double milliseconds(const Device& gpu, int runs, const Run& run) {
  run();  // the first ones allocate, and choose algorithms
  run();
  gpu.synchronize();
  return 1e3 * best_seconds(runs, [&] {
           run();
           gpu.synchronize();
         });
}

}  // namespace dofla::bench
