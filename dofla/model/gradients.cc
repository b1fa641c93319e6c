#include "dofla/model/gradients.h"

#include <algorithm>
#include <cstring>
#include <unordered_map>

#include "dofla/model/transformer.h"

namespace dofla {
namespace {

// Of Features or FeatureGradients.
template <class T>
void append_features(size_t layer, const T& features, NamedTensors& named) {
  for (const auto& [part_name, part] : feature_parts(features))
    if (part->defined()) named.emplace_back(feature_name(layer, part_name), *part);
}

// Tensors of a model are handed out one after another from a single piece of memory, which is
// cleared at once. Each begins at a multiple of 256 bytes, as memory of its own would, and takes
// some where it has no elements, so that addresses tell tensors apart.
class Parts {
 public:
  explicit Parts(const NamedTensors& all) {
    int64_t total = 0;
    for (const auto& [name, tensor] : all) total += space_of(tensor);
    if (total > 0) memory_ = Tensor::zeros({total}, DType::kF32, all.front().second.device());
  }

  Tensor like(const Tensor& tensor) {
    const int64_t begin = taken_;
    taken_ += space_of(tensor);
    return memory_.slice(begin, begin + tensor.count()).reshape(tensor.shape());
  }
  const Tensor& memory() const { return memory_; }

 private:
  static int64_t space_of(const Tensor& tensor) {
    constexpr int64_t kStep = 64;
    return (std::max<int64_t>(tensor.count(), 1) + kStep - 1) / kStep * kStep;
  }

  Tensor memory_;
  int64_t taken_ = 0;
};

}  // namespace

std::vector<int64_t> layers_of(const Gradients& gradients) {
  std::unordered_map<const void*, int64_t> layers;
  const auto add = [&](const Tensor& tensor, size_t layer) {
    if (tensor.defined()) layers[tensor.raw()] = static_cast<int64_t>(layer);
  };
  for (size_t i = 0; gradients.weights && i < gradients.weights->layers.size(); ++i)
    each_tensor(gradients.weights->layers[i], [&](const Tensor& tensor) { add(tensor, i); });
  for (size_t i = 0; i < gradients.features.size(); ++i)
    for (const auto& [name, part] : feature_parts(gradients.features[i])) add(*part, i);
  std::vector<int64_t> found;
  for (const auto& [name, tensor] : parameters(gradients)) {
    const auto layer = layers.find(tensor.raw());
    found.push_back(layer == layers.end() ? -1 : layer->second);
  }
  return found;
}

std::string feature_name(size_t layer, std::string_view part) {
  return fmt::format("linear_attention.{}.{}", layer, part);
}

NamedTensors named_features(size_t layer, const Features& features) {
  NamedTensors named;
  append_features(layer, features, named);
  return named;
}

void Gradients::clear() {
  if (!memory.defined()) return;
  if (memory.device().is_cuda())
    zero_bytes(memory.device(), memory.mutable_raw(), memory.bytes());
  else
    std::memset(memory.mutable_raw(), 0, static_cast<size_t>(memory.bytes()));
}

Linear* Gradients::head() {
  return weights && weights->head.weight.defined() ? &weights->head : nullptr;
}

std::unordered_set<const void*> trained_memory(const Weights& weights, Trained what) {
  std::unordered_set<const void*> trained;
  const auto add = [&](const Tensor& tensor) {
    if (tensor.defined()) trained.insert(tensor.raw());
  };
  if (what.weights)
    for (const auto& [name, tensor] : weights.parameters) add(tensor);
  for (size_t i = 0; what.attention && i < weights.layers.size(); ++i) {
    const LayerWeights& layer = weights.layers[i];
    std::vector<Linear> linears = layer.projections;
    linears.push_back(layer.attention_output);
    for (const Linear& linear : linears) {
      add(linear.weight);
      add(linear.bias);
    }
    add(layer.q_norm);
    add(layer.k_norm);
  }
  return trained;
}

Gradients new_gradients(const Transformer& model, Trained what) {
  Gradients gradients;
  Parts parts(parameters(model, what));
  gradients.memory = parts.memory();
  if (what.weights || what.attention) {
    const auto trained = trained_memory(model.weights(), what);
    gradients.weights = transform(model.weights(), [&](const Tensor& tensor) {
      return trained.contains(tensor.raw()) ? parts.like(tensor) : Tensor();
    });
    std::erase_if(gradients.weights->parameters,
                  [](const auto& named) { return !named.second.defined(); });
  }
  for (int64_t i = 0; what.features && i < model.config().layers; ++i) {
    FeatureGradients& layer = gradients.features.emplace_back();
    const Features* features = model.attention(i).features();
    if (features == nullptr) continue;
    const auto from = feature_parts(*features);
    const auto to = feature_parts(layer);
    for (size_t part = 0; part < from.size(); ++part)
      if (from[part].second->defined()) *to[part].second = parts.like(*from[part].second);
  }
  return gradients;
}

NamedTensors parameters(const Transformer& model, Trained what) {
  // On a GPU the model computes with copies of its parameters, which stand in the same order.
  const NamedTensors& all = model.parameters();
  const NamedTensors& computed = model.weights().parameters;
  const auto trained = trained_memory(model.weights(), what);
  NamedTensors named;
  for (size_t i = 0; i < all.size(); ++i)
    if (trained.contains(computed[i].second.raw())) named.push_back(all[i]);
  for (int64_t i = 0; what.features && i < model.config().layers; ++i)
    if (const Features* features = model.attention(i).features())
      append_features(static_cast<size_t>(i), *features, named);
  return named;
}

std::vector<Tensor> rounded_copies(const Transformer& model, Trained what) {
  const NamedTensors& all = model.parameters();
  const NamedTensors& computed = model.weights().parameters;
  std::unordered_map<const void*, Tensor> copies;  // by the memory of the parameter
  for (size_t i = 0; i < all.size(); ++i)
    if (computed[i].second.dtype() == DType::kBF16 && all[i].second.dtype() == DType::kF32)
      copies.emplace(all[i].second.raw(), computed[i].second);
  std::vector<Tensor> of_trained;
  for (const auto& [name, parameter] : parameters(model, what)) {
    const auto copy = copies.find(parameter.raw());
    of_trained.push_back(copy == copies.end() ? Tensor() : copy->second);
  }
  return of_trained;
}

NamedTensors parameters(const Gradients& gradients) {
  NamedTensors named;
  if (gradients.weights) named = gradients.weights->parameters;
  for (size_t i = 0; i < gradients.features.size(); ++i)
    append_features(i, gradients.features[i], named);
  return named;
}

}  // namespace dofla
