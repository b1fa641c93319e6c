#include "bench/gpu/workload.h"

#include <algorithm>

#include "bench/gpu/random_gpt2.h"
#include "bench/support/bench_model.h"
#include "dofla/core/random.h"
#include "dofla/distill/feature_init.h"
#include "dofla/plan/allocate.h"

namespace dofla::bench {

Tensor random_bf16(const Shape& shape, double deviation, uint64_t seed) {
  Tensor out(shape, DType::kBF16);
  BFloat16* values = out.data<BFloat16>();
  const int64_t block = std::min<int64_t>(out.count(), (int64_t{1} << 22) - 1);
  Random random(seed);
  for (int64_t i = 0; i < block; ++i)
    values[i] = to_bfloat16(static_cast<float>(deviation * random.normal()));
  for (int64_t at = block; at < out.count(); at += block)
    std::copy_n(values, std::min(block, out.count() - at), values + at);
  return out;
}

Workload make_workload(const Device& gpu) {
  const std::optional<fs::path> trained = gpt2_wiki();
  const Checkpoint checkpoint = trained ? Checkpoint(*trained) : random_gpt2();
  Transformer teacher(checkpoint, gpu);
  const int64_t vocabulary = teacher.config().vocabulary;
  return {gpu, trained ? "gpt2-wiki" : "random weights", checkpoint, std::move(teacher),
          some_ids(kBatch * kTokens, vocabulary).reshape({kBatch, kTokens})};
}

FeatureSet random_features(const Workload& work) {
  return init_features(fixed_plan(identity_of(work.teacher.config()), kFeatures), {}).to(work.gpu);
}

Ceilings measure_ceilings(const Device& gpu) {
  // Products of zeros draw less power and run a fifth faster than those of other numbers.
  constexpr int64_t n = 8192;
  const Linear weight = {random_bf16({n, n}, 1, 1).to(gpu), false, {}};
  const Tensor x = random_bf16({n, n}, 1, 2).to(gpu);
  const double product = milliseconds(gpu, 10, [&] { matmul(x, weight); });
  const Tensor block = x.repeat(8);  // 1 GiB
  const double copy = milliseconds(gpu, 10, [&] { block.clone(); });
  return {.product = 2.0 * n * n * n / (1e-3 * product),
          .copy = 2.0 * static_cast<double>(block.bytes()) / (1e-3 * copy)};
}

}  // namespace dofla::bench
