#include "dofla/model/gradients.h"

#include <cstring>

#include "dofla/model/transformer.h"

namespace dofla {
namespace {

// Of Features or FeatureGradients.
template <class T>
void append_features(size_t layer, const T& features, NamedTensors& named) {
  for (const auto& [part_name, part] : feature_parts(features))
    if (part->defined()) named.emplace_back(feature_name(layer, part_name), *part);
}

Tensor zeros_like(const Tensor& tensor) {
  return Tensor::zeros(tensor.shape(), DType::kF32, tensor.device());
}

}  // namespace

std::string feature_name(size_t layer, std::string_view part) {
  return fmt::format("linear_attention.{}.{}", layer, part);
}

NamedTensors named_features(size_t layer, const Features& features) {
  NamedTensors named;
  append_features(layer, features, named);
  return named;
}

void Gradients::clear() {
  for (auto& [name, tensor] : parameters(*this)) {
    if (tensor.device().is_cuda())
      zero_bytes(tensor.device(), tensor.mutable_raw(), tensor.bytes());
    else
      std::memset(tensor.mutable_raw(), 0, static_cast<size_t>(tensor.bytes()));
  }
}

Gradients new_gradients(const Transformer& model, Trained what) {
  Gradients gradients;
  if (what.weights) gradients.weights = transform(model.weights(), zeros_like);
  for (int64_t i = 0; what.features && i < model.config().layers; ++i) {
    FeatureGradients& layer = gradients.features.emplace_back();
    const Features* features = model.attention(i).features();
    if (features == nullptr) continue;
    const auto from = feature_parts(*features);
    const auto to = feature_parts(layer);
    for (size_t part = 0; part < from.size(); ++part)
      if (from[part].second->defined()) *to[part].second = zeros_like(*from[part].second);
  }
  return gradients;
}

NamedTensors parameters(const Transformer& model, Trained what) {
  NamedTensors named;
  if (what.weights) named = model.parameters();
  for (int64_t i = 0; what.features && i < model.config().layers; ++i)
    if (const Features* features = model.attention(i).features())
      append_features(static_cast<size_t>(i), *features, named);
  return named;
}

NamedTensors parameters(const Gradients& gradients) {
  NamedTensors named;
  if (gradients.weights) named = gradients.weights->parameters;
  for (size_t i = 0; i < gradients.features.size(); ++i)
    append_features(i, gradients.features[i], named);
  return named;
}

}  // namespace dofla
