#include "dofla/model/weights.h"

#include <algorithm>
#include <unordered_map>
#include <unordered_set>

#include "dofla/checkpoint/parameters.h"
#include "dofla/core/parallel.h"
#include "dofla/ops/rounding.h"

namespace dofla {
namespace {

void each_tensor(NormWeights& norm, const std::function<void(Tensor&)>& see) {
  see(norm.weight);
  see(norm.bias);
}

void each_tensor(Linear& linear, const std::function<void(Tensor&)>& see) {
  see(linear.weight);
  see(linear.bias);
}

void each_linear(LayerWeights& layer, const std::function<void(Linear&)>& see) {
  for (Linear& projection : layer.projections) see(projection);
  for (Linear* linear : {&layer.attention_output, &layer.mlp_gate, &layer.mlp_up, &layer.mlp_down})
    see(*linear);
}

void each_tensor(LayerWeights& layer, const std::function<void(Tensor&)>& see) {
  each_tensor(layer.attention_norm, see);
  see(layer.q_norm);
  see(layer.k_norm);
  each_tensor(layer.mlp_norm, see);
  each_linear(layer, [&](Linear& linear) { each_tensor(linear, see); });
}

// Every tensor, defined or not.
void each_tensor(Weights& weights, const std::function<void(Tensor&)>& see) {
  see(weights.token_embedding);
  see(weights.position_embedding);
  for (LayerWeights& layer : weights.layers) each_tensor(layer, see);
  each_tensor(weights.final_norm, see);
  each_tensor(weights.head, see);
  for (auto& [name, tensor] : weights.parameters) see(tensor);
}

Tensor to_bf16(const Tensor& tensor) {
  return tensor.dtype() == DType::kBF16 ? tensor : tensor.to(DType::kF32).to(DType::kBF16);
}

// The memory of all norms: small, and kept in F32 everywhere.
std::unordered_set<const void*> norms_of(Weights weights) {
  std::unordered_set<const void*> norms;
  const std::function<void(Tensor&)> see = [&](Tensor& tensor) { norms.insert(tensor.raw()); };
  each_tensor(weights.final_norm, see);
  for (LayerWeights& layer : weights.layers) {
    each_tensor(layer.attention_norm, see);
    each_tensor(layer.mlp_norm, see);
    see(layer.q_norm);
    see(layer.k_norm);
  }
  return norms;
}

// [K, N] to [N, K], in squares that stay in the cache.
Tensor transpose(const Tensor& matrix) {
  constexpr int64_t kSquare = 64;
  const int64_t rows = matrix.size(0), columns = matrix.size(1);
  Tensor out({columns, rows}, matrix.dtype());
  const auto* from = matrix.data<BFloat16>();
  auto* to = out.data<BFloat16>();
  parallel_for((columns + kSquare - 1) / kSquare, [&](int64_t band) {
    const int64_t begin = band * kSquare, end = std::min(columns, begin + kSquare);
    for (int64_t r0 = 0; r0 < rows; r0 += kSquare)
      for (int64_t c = begin; c < end; ++c)
        for (int64_t r = r0; r < std::min(rows, r0 + kSquare); ++r)
          to[c * rows + r] = from[r * columns + c];
  });
  return out;
}

}  // namespace

void each_tensor(const LayerWeights& layer, const std::function<void(const Tensor&)>& see) {
  LayerWeights handles = layer;
  const std::function<void(Tensor&)> look = [&](Tensor& tensor) { see(tensor); };
  each_tensor(handles, look);
}

Weights load_weights(const Checkpoint& checkpoint) {
  WeightReader reader(checkpoint);
  const std::string& type = checkpoint.config().model_type;
  Weights weights = type == "gpt2"       ? load_gpt2(reader)
                    : type == "gpt_neox" ? load_gpt_neox(reader)
                                         : load_llama(reader);  // read_config lets no other through
  weights.parameters = reader.parameters();
  require_all_used(checkpoint, weights.parameters);
  return weights;
}

Weights transform(const Weights& weights, const std::function<Tensor(const Tensor&)>& change) {
  std::unordered_map<const void*, Tensor> changed;  // by the memory they had
  Weights out = weights;
  each_tensor(out, [&](Tensor& tensor) {
    if (!tensor.defined()) return;
    const auto [at, fresh] = changed.try_emplace(tensor.raw());
    if (fresh) at->second = change(tensor);
    tensor = at->second;
  });
  return out;
}

Weights on_gpu(const Weights& weights, const Device& gpu, DType type) {
  require(type == DType::kBF16 || type == DType::kF32,
          "weights on a GPU are in BF16 or F32, not {}", name(type));
  if (type == DType::kF32)
    return transform(weights, [&](const Tensor& tensor) { return tensor.to(type).to(gpu); });
  Weights named_less = weights;
  named_less.parameters.clear();
  for (LayerWeights& layer : named_less.layers)
    each_linear(layer, [&](Linear& linear) {
      if (!linear.input_major) return;
      linear.weight = transpose(to_bf16(linear.weight)).to(gpu);
      linear.input_major = false;
    });
  const auto norms = norms_of(weights);
  return transform(named_less, [&](const Tensor& tensor) {
    return (norms.contains(tensor.raw()) ? tensor : to_bf16(tensor)).to(gpu);
  });
}

Weights rounded_copies(const Weights& weights) {
  const auto norms = norms_of(weights);
  return transform(weights, [&](const Tensor& tensor) {
    if (norms.contains(tensor.raw())) return tensor;
    Tensor copy(tensor.shape(), DType::kBF16, tensor.device());
    round_into(tensor, copy);
    return copy;
  });
}

Tensor WeightReader::remember(const std::string& name, const Tensor& tensor) {
  parameters_.emplace_back(name, tensor);
  return tensor;
}

Tensor WeightReader::matrix(const std::string& name, const Shape& shape) {
  const Tensor tensor = checkpoint_.tensor(name, shape);
  return remember(name, tensor.dtype() == DType::kF64 ? tensor.to(DType::kF32) : tensor);
}

Tensor WeightReader::vector(const std::string& name, int64_t size) {
  return remember(name, checkpoint_.tensor(name, {size}).to(DType::kF32));
}

NormWeights WeightReader::norm(const std::string& name, int64_t size, bool with_bias) {
  NormWeights norm = {.weight = vector(name + ".weight", size), .bias = {}};
  if (with_bias) norm.bias = vector(name + ".bias", size);
  return norm;
}

Linear WeightReader::linear(const std::string& name, int64_t inputs, int64_t outputs,
                            bool with_bias) {
  Linear linear = {
      .weight = matrix(name + ".weight", {outputs, inputs}), .input_major = false, .bias = {}};
  if (with_bias) linear.bias = vector(name + ".bias", outputs);
  return linear;
}

}  // namespace dofla
