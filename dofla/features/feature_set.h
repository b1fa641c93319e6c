// The features of a whole model: what distillation learns and a linear model is made of.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "dofla/checkpoint/safetensors.h"
#include "dofla/features/feature_map.h"
#include "dofla/ops/features.h"

namespace dofla {

struct FeatureSet {
  FeatureMap map = FeatureMap::kPrf;
  std::vector<Features> layers;  // empty where a layer keeps its softmax attention

  std::vector<std::vector<int64_t>> counts() const;  // M, [layers, heads]; none for such a layer
  const Features& first() const;  // the first layer that has any; std::invalid_argument if none has
  FeatureSet clone() const;       // an independent copy
  FeatureSet to(const Device& device) const;  // a copy there; itself if it is there already
};

// As tensors of a safetensors file, "linear_attention.<layer>.z", ".log_alpha" and, where untied,
// ".u" and ".norm_weight"; the counts stand in the configuration beside it. Reading throws Error on
// what is missing or misshapen.
NamedTensors to_tensors(const FeatureSet& set);
using FindTensor = std::function<Tensor(const std::string& name, const Shape& expected)>;
FeatureSet from_tensors(FeatureMap map, const std::vector<std::vector<int64_t>>& counts,
                        int64_t query_heads, int64_t head_size, const FindTensor& find);

}  // namespace dofla
