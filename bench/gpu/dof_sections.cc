// Degrees of freedom: all heads of GPT-2 small at one λ, Gram matrices included.
#include "bench/gpu/sections.h"
#include "dofla/core/random.h"
#include "dofla/ops/ridge_traces.h"

namespace dofla::bench {

void dof_section(const Workload& work, Figures& figures) {
  constexpr int64_t kHeads = 144, kSamples = 2048, kWidth = 64;
  Tensor samples({kHeads, kSamples, kWidth});
  Random random(1);
  float* value = samples.data<float>();
  for (int64_t i = 0; i < samples.count(); ++i) value[i] = static_cast<float>(random.normal());
  const Tensor there = samples.to(work.gpu);
  const double lambda = 0x1p-8;
  // The operations, of a Cholesky factor and of its inverse, are in float64: not counted, since the
  // ceiling is that of bf16.
  figures.add({.name = "dof",
               .milliseconds = milliseconds(work.gpu, 5,
                                            [&] {
                                              ridge_traces(there, GramScale::kTrace, {&lambda, 1});
                                            }),
               .per = "run"});
}

}  // namespace dofla::bench
