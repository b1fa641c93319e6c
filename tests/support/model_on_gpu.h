// What the tests of whole models on a GPU share: text, and features for wiki-mini.
#pragma once

#include "dofla/distill/pair_init.h"
#include "dofla/plan/allocate.h"
#include "tests/support/fixtures.h"
#include "tests/support/gpu.h"

namespace dofla::test {

class ModelOnGpu : public OnGpu {
 protected:
  static Tensor some_ids(const ModelConfig& config, int64_t batch, int64_t tokens) {
    Tensor ids({batch, tokens}, DType::kI64);
    for (int64_t i = 0; i < ids.count(); ++i)
      ids.data<int64_t>()[i] = (3 + i * 131) % config.vocabulary;
    return ids;
  }
  static FeatureSet pair_features(const Transformer& teacher, const Tensor& ids, int64_t cost,
                                  FeatureMap map = FeatureMap::kPrf) {
    const ModelConfig& config = teacher.config();
    const int64_t heads = feature_heads(map, config.heads, config.kv_heads);
    PairSampler pairs(fixed_plan(identity_of(config), cost, heads), 1, 7);
    teacher.forward(ids.slice(0, 1), {.state = nullptr, .observer = pairs.observer()});
    return pairs.features(map);
  }
  const fs::path wiki_mini = assets() / "wiki-mini";
};

}  // namespace dofla::test
