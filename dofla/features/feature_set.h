// The features of a whole model: what distillation learns and a linear model is made of.
#pragma once

#include <functional>
#include <span>
#include <string>
#include <vector>

#include "dofla/checkpoint/safetensors.h"
#include "dofla/features/coordinates.h"
#include "dofla/features/exact_key_set.h"
#include "dofla/features/feature_map.h"
#include "dofla/ops/features.h"

namespace dofla {

struct FeatureSet {
  FeatureMap map = FeatureMap::kPrf;
  std::vector<Features> layers;    // empty where a layer keeps its softmax attention or forgets
  CoordinateSet coordinates = {};  // of the queries and keys that the features are for
  ExactKeySet exact = {};          // that layers keep beside their features, or instead of them

  std::vector<std::vector<int64_t>> counts() const;  // M, [layers, heads]; none for such a layer
  const Features& first() const;  // the first layer that has any; std::invalid_argument if none has
  FeatureSet clone() const;       // an independent copy
  FeatureSet to(const Device& device) const;  // a copy there; itself if it is there already
};

// What attention a model with such a set has: linear, exact keys, both (hybrid), or softmax where
// the set has no layers.
std::string kind_of(const FeatureSet& features);

// The exact keys of sets that are trained or weighed side by side, on the same queries and keys:
// one or more. Throws std::invalid_argument if they are not the same.
const ExactKeySet& common_exact_keys(std::span<const FeatureSet> sets);

// No features at all: every layer keeps its cache and forgets what leaves it. The same cache in all
// layers, or each its own.
FeatureSet exact_keys_alone(int64_t layers, const ExactKeys& exact);
FeatureSet exact_keys_alone(const ExactKeySet& exact);

// As tensors of a safetensors file, handles to the set's own: "linear_attention.<layer>.z" and
// ".log_alpha", where untied also ".u" and ".norm_weight", and ".map" and ".shift" of coordinates.
// What else there is to know of a set stands in the configuration beside it.
NamedTensors to_tensors(const FeatureSet& set);

// Reading throws Error on what is missing or misshapen.
struct FeatureSetForm {
  FeatureMap map = FeatureMap::kPrf;
  Coordinates coordinates = Coordinates::kRaw;
  std::vector<std::vector<int64_t>> counts;  // as FeatureSet::counts() has them
  ExactKeySet exact = {};
};
using FindTensor = std::function<Tensor(const std::string& name, const Shape& expected)>;
FeatureSet from_tensors(const FeatureSetForm& form, const ModelConfig& config,
                        const FindTensor& find);

}  // namespace dofla
