#include "dofla/features/feature_set.h"

#include <algorithm>
#include <numeric>

#include "dofla/model/gradients.h"

namespace dofla {

std::vector<std::vector<int64_t>> FeatureSet::counts() const {
  std::vector<std::vector<int64_t>> all;
  for (const Features& layer : layers) all.push_back(layer.counts);
  return all;
}

const Features& FeatureSet::first() const {
  const auto found = std::ranges::find_if(layers, [](const auto& layer) { return !layer.empty(); });
  require(found != layers.end(), "features: no layer has any");
  return *found;
}

FeatureSet FeatureSet::clone() const {
  FeatureSet copy = *this;
  for (Features& layer : copy.layers) {
    if (layer.empty()) continue;
    layer.z = layer.z.clone();
    layer.log_alpha = layer.log_alpha.clone();
  }
  return copy;
}

FeatureSet FeatureSet::to(const Device& device) const {
  FeatureSet there = {.map = map, .layers = {}};
  for (const Features& layer : layers) there.layers.push_back(layer.to(device));
  return there;
}

NamedTensors to_tensors(const FeatureSet& set) {
  NamedTensors tensors;
  for (size_t i = 0; i < set.layers.size(); ++i) {
    if (set.layers[i].empty()) continue;
    tensors.emplace_back(feature_name(i, "z"), set.layers[i].z);
    tensors.emplace_back(feature_name(i, "log_alpha"), set.layers[i].log_alpha);
  }
  return tensors;
}

FeatureSet from_tensors(FeatureMap map, const std::vector<std::vector<int64_t>>& counts,
                        int64_t head_size, const FindTensor& find) {
  FeatureSet set = {.map = map, .layers = {}};
  for (size_t i = 0; i < counts.size(); ++i) {
    if (counts[i].empty()) {
      set.layers.emplace_back();
      continue;
    }
    const int64_t total = std::accumulate(counts[i].begin(), counts[i].end(), int64_t{0});
    set.layers.push_back({.counts = counts[i],
                          .z = find(feature_name(i, "z"), {total, head_size}).to(DType::kF32),
                          .log_alpha = find(feature_name(i, "log_alpha"), {total}).to(DType::kF32),
                          .subtract_norm = subtracts_norm(map)});
  }
  return set;
}

}  // namespace dofla
