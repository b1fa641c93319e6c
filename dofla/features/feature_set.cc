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
  FeatureSet there = {.map = map, .layers = {}, .coordinates = coordinates, .exact = exact};
  for (const Features& layer : layers) there.layers.push_back(layer.to(device));
  return there;
}

std::string kind_of(const FeatureSet& features) {
  if (features.layers.empty()) return "softmax";
  const bool exact =
      std::ranges::any_of(features.exact, [](const ExactKeys& keys) { return !keys.empty(); });
  const bool linear =
      std::ranges::any_of(features.layers, [](const Features& layer) { return !layer.empty(); });
  return exact && linear ? "hybrid" : exact ? "exact keys" : "linear";
}

const ExactKeySet& common_exact_keys(std::span<const FeatureSet> sets) {
  require(!sets.empty(), "exact keys: of no features");
  const FeatureSet& first = sets.front();
  for (const FeatureSet& set : sets)
    for (size_t i = 0; i < set.layers.size(); ++i)
      require(exact_keys_of(set.exact, i) == exact_keys_of(first.exact, i),
              "layer {}: features side by side have other exact keys", i + 1);
  return first.exact;
}

FeatureSet exact_keys_alone(const ExactKeySet& exact) {
  return {.map = FeatureMap::kUntied,
          .layers = std::vector<Features>(exact.size()),
          .coordinates = {},
          .exact = exact};
}

FeatureSet exact_keys_alone(int64_t layers, const ExactKeys& exact) {
  return exact_keys_alone(ExactKeySet(static_cast<size_t>(layers), exact));
}

NamedTensors to_tensors(const FeatureSet& set) {
  NamedTensors tensors;
  for (size_t i = 0; i < set.layers.size(); ++i) {
    if (set.layers[i].empty()) continue;
    for (auto& named : named_features(i, set.layers[i])) tensors.push_back(std::move(named));
  }
  for (size_t i = 0; i < set.coordinates.layers.size(); ++i) {
    tensors.emplace_back(feature_name(i, "map"), set.coordinates.layers[i].map);
    tensors.emplace_back(feature_name(i, "shift"), set.coordinates.layers[i].shift);
  }
  return tensors;
}

FeatureSet from_tensors(const FeatureSetForm& form, const ModelConfig& config,
                        const FindTensor& find) {
  const int64_t size = config.head_size;
  const auto find_f32 = [&](size_t layer, const char* what, const Shape& shape) {
    return find(feature_name(layer, what), shape).to(DType::kF32);
  };
  FeatureSet set = {.map = form.map,
                    .layers = {},
                    .coordinates = {.kind = form.coordinates},
                    .exact = form.exact};
  for (size_t i = 0; i < form.counts.size(); ++i) {
    if (form.coordinates != Coordinates::kRaw)
      set.coordinates.layers.push_back({find_f32(i, "map", {config.kv_heads, size, size}),
                                        find_f32(i, "shift", {config.kv_heads, size})});
    const std::vector<int64_t>& counts = form.counts[i];
    if (counts.empty()) {
      set.layers.emplace_back();
      continue;
    }
    const int64_t total = std::accumulate(counts.begin(), counts.end(), int64_t{0});
    Features& layer = set.layers.emplace_back();
    layer = {.counts = counts,
             .z = find_f32(i, "z", {total, size}),
             .log_alpha = find_f32(i, "log_alpha", {total}),
             .subtract_norm = subtracts_norm(form.map)};
    if (!is_untied(form.map)) continue;
    layer.u = find_f32(i, "u", {config.heads / layer.heads() * total, size});
    layer.norm_weight = find_f32(i, "norm_weight", {layer.heads()});
  }
  return set;
}

}  // namespace dofla
