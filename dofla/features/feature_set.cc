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
    for (auto [name, part] : feature_parts(layer))
      if (part->defined()) *part = part->clone();
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
    for (auto& named : named_features(i, set.layers[i])) tensors.push_back(std::move(named));
  }
  return tensors;
}

FeatureSet from_tensors(FeatureMap map, const std::vector<std::vector<int64_t>>& counts,
                        int64_t query_heads, int64_t head_size, const FindTensor& find) {
  FeatureSet set = {.map = map, .layers = {}};
  for (size_t i = 0; i < counts.size(); ++i) {
    if (counts[i].empty()) {
      set.layers.emplace_back();
      continue;
    }
    const int64_t total = std::accumulate(counts[i].begin(), counts[i].end(), int64_t{0});
    const auto part = [&](std::string_view name, const Shape& shape) {
      return find(feature_name(i, name), shape).to(DType::kF32);
    };
    Features& layer = set.layers.emplace_back();
    layer = {.counts = counts[i],
             .z = part("z", {total, head_size}),
             .log_alpha = part("log_alpha", {total}),
             .subtract_norm = subtracts_norm(map)};
    if (!is_untied(map)) continue;
    layer.u = part("u", {query_heads / layer.heads() * total, head_size});
    layer.norm_weight = part("norm_weight", {layer.heads()});
  }
  return set;
}

}  // namespace dofla
