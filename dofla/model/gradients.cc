#include "dofla/model/gradients.h"

#include <cstring>

#include "dofla/model/transformer.h"

namespace dofla {
namespace {

void append_features(size_t layer, const Tensor& z, const Tensor& log_alpha, NamedTensors& named) {
  named.emplace_back(feature_name(layer, "z"), z);
  named.emplace_back(feature_name(layer, "log_alpha"), log_alpha);
}

Tensor zeros_like(const Tensor& tensor) {
  return Tensor::zeros(tensor.shape(), DType::kF32, tensor.device());
}

}  // namespace

std::string feature_name(size_t layer, std::string_view what) {
  return fmt::format("linear_attention.{}.{}", layer, what);
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
    if (const Features* features = model.attention(i).features())
      layer = {zeros_like(features->z), zeros_like(features->log_alpha)};
  }
  return gradients;
}

NamedTensors parameters(const Transformer& model, Trained what) {
  NamedTensors named;
  if (what.weights) named = model.parameters();
  for (int64_t i = 0; what.features && i < model.config().layers; ++i)
    if (const Features* features = model.attention(i).features())
      append_features(static_cast<size_t>(i), features->z, features->log_alpha, named);
  return named;
}

NamedTensors parameters(const Gradients& gradients) {
  NamedTensors named;
  if (gradients.weights) named = gradients.weights->parameters;
  for (size_t i = 0; i < gradients.features.size(); ++i)
    if (gradients.features[i].z.defined())
      append_features(i, gradients.features[i].z, gradients.features[i].log_alpha, named);
  return named;
}

}  // namespace dofla
