#include "dofla/train/lora.h"

#include <cmath>

#include "dofla/core/error.h"
#include "dofla/core/random.h"

namespace dofla {
namespace {

Tensor gaussian(const Shape& shape, double deviation, Random& random) {
  Tensor values(shape);
  for (int64_t i = 0; i < values.count(); ++i)
    values.data<float>()[i] = static_cast<float>(deviation * random.normal());
  return values;
}

// The matrices as the model computes with them, by their memory.
std::map<const void*, Linear> attention_matrices(const Weights& weights) {
  std::map<const void*, Linear> matrices;
  for (const LayerWeights& layer : weights.layers) {
    for (const Linear& linear : layer.projections) matrices[linear.weight.raw()] = linear;
    matrices[layer.attention_output.weight.raw()] = layer.attention_output;
  }
  return matrices;
}

}  // namespace

LoraUpdates::LoraUpdates(const Transformer& model, int64_t rank, uint64_t seed) {
  const auto matrices = attention_matrices(model.weights());
  const NamedTensors& computed = model.weights().parameters;
  for (size_t i = 0; i < computed.size(); ++i) {
    const auto found = matrices.find(computed[i].second.raw());
    if (found == matrices.end()) continue;
    const auto& [name, parameter] = model.parameters()[i];
    const Linear matrix = {parameter, found->second.input_major, {}};
    const int64_t inputs = matrix.inputs(), outputs = matrix.outputs();
    if (rank >= std::min(inputs, outputs))
      fail("low-rank updates of rank {}: expected less than the sides of {}, {}", rank, name,
           to_string(parameter.shape()));
    Random random(seed, i);
    const Device& device = model.device();
    updates_[name] = {
        .matrix = matrix,
        .start = parameter.clone(),
        .a =
            gaussian({rank, inputs}, 1 / std::sqrt(static_cast<double>(inputs)), random).to(device),
        .b = Tensor::zeros({rank, outputs}, DType::kF32, device)};
  }
}

NamedTensors LoraUpdates::factors(const NamedTensors& parameters) const {
  NamedTensors all;
  for (const auto& named : parameters) {
    const auto update = updates_.find(named.first);
    if (update == updates_.end()) {
      all.push_back(named);
      continue;
    }
    all.emplace_back(named.first + ".lora_a", update->second.a);
    all.emplace_back(named.first + ".lora_b", update->second.b);
  }
  return all;
}

NamedTensors LoraUpdates::gradients(const NamedTensors& of_weights) const {
  NamedTensors all;
  for (const auto& named : of_weights) {
    const auto update = updates_.find(named.first);
    if (update == updates_.end()) {
      all.push_back(named);
      continue;
    }
    const auto& [matrix, start, a, b] = update->second;
    const Linear gradient = {named.second, matrix.input_major, {}};
    all.emplace_back(named.first + ".lora_a", matmul(b, transposed(gradient)));
    all.emplace_back(named.first + ".lora_b", matmul(a, gradient));
  }
  return all;
}

void LoraUpdates::apply() {
  for (auto& [name, update] : updates_) {
    update.matrix.weight.assign(update.start);
    add_weight_gradient(update.a, update.b, update.matrix);  // W += B·A
  }
}

}  // namespace dofla
