// Fixture models made linear.
#pragma once

#include <algorithm>
#include <vector>

#include "dofla/distill/feature_init.h"
#include "dofla/plan/allocate.h"
#include "tests/support/tolerance.h"

namespace dofla::test {

// Ragged on purpose: head h of layer l has 5 + 3 h + l features. Untied ones have moved apart.
inline FeatureSet ragged_features(const ModelConfig& config, FeatureMap map = FeatureMap::kPrf) {
  DimensionPlan plan =
      fixed_plan(identity_of(config), 5, feature_heads(map, config.heads, config.kv_heads));
  for (size_t layer = 0; layer < plan.heads.size(); ++layer)
    for (size_t head = 0; head < plan.heads[layer].size(); ++head)
      plan.heads[layer][head] += static_cast<int64_t>(3 * head + layer);
  FeatureSet set = init_features(plan, {.map = map});
  for (Features& layer : set.layers) {
    for (int64_t i = 0; layer.untied() && i < layer.u.count(); ++i)
      layer.u.data<float>()[i] += 0.01f * static_cast<float>(i % 5);
    for (int64_t i = 0; layer.untied() && i < layer.heads(); ++i)
      layer.norm_weight.data<float>()[i] = 0.9f - 0.1f * static_cast<float>(i);
  }
  return set;
}

// The same with softmax attention kept in every second layer, the first included.
inline FeatureSet mixed_features(const ModelConfig& config, FeatureMap map = FeatureMap::kPrf) {
  FeatureSet set = ragged_features(config, map);
  for (size_t layer = 0; layer < set.layers.size(); layer += 2) set.layers[layer] = {};
  return set;
}

// A cache that is full after eight tokens.
inline ExactKeys few_keys(KeyPolicy policy = KeyPolicy::kAttended) {
  return {.keys = 8, .sinks = 1, .recent = 2, .block = 4, .policy = policy};
}

// The same, and every second key head holds a block more.
inline ExactKeys ragged_keys(const ModelConfig& config, KeyPolicy policy) {
  ExactKeys exact = few_keys(policy);
  for (int64_t h = 0; h < config.kv_heads; ++h)
    exact.head_keys.push_back(exact.keys + h % 2 * exact.block);
  exact.keys = *std::ranges::max_element(exact.head_keys);
  return exact;
}

// A hybrid student: features and exact keys in every layer but the last, which has exact keys
// alone. In the second layer key heads hold different numbers of them.
inline FeatureSet hybrid_features(const ModelConfig& config, FeatureMap map = FeatureMap::kPrf,
                                  KeyPolicy policy = KeyPolicy::kAttended) {
  FeatureSet set = ragged_features(config, map);
  set.exact.assign(set.layers.size(), few_keys(policy));
  if (set.exact.size() > 1 && config.kv_heads > 1) set.exact[1] = ragged_keys(config, policy);
  set.layers.back() = {};
  return set;
}

inline Tensor some_ids(const ModelConfig& config, int64_t batch, int64_t tokens) {
  Tensor ids({batch, tokens}, DType::kI64);
  for (int64_t i = 0; i < ids.count(); ++i)
    ids.data<int64_t>()[i] = (3 + i * 131) % config.vocabulary;
  return ids;
}

inline std::vector<int64_t> as_vector(const Tensor& ids) {
  return {ids.data<int64_t>(), ids.data<int64_t>() + ids.count()};
}

// Of logits computed in two ways, both in float32.
inline double forward_tolerance(const ModelConfig& config, const Tensor& reference) {
  return float32_tolerance(std::max(config.width, config.mlp_width), 5 * config.layers + 1,
                           largest(reference));
}

}  // namespace dofla::test
