#include "dofla/model/weights.h"

namespace dofla {

Tensor load_matrix(const Checkpoint& checkpoint, const std::string& name, const Shape& shape) {
  const Tensor tensor = checkpoint.tensor(name, shape);
  return tensor.dtype() == DType::kF64 ? tensor.to(DType::kF32) : tensor;
}

Tensor load_vector(const Checkpoint& checkpoint, const std::string& name, int64_t size) {
  return checkpoint.tensor(name, {size}).to(DType::kF32);
}

NormWeights load_norm(const Checkpoint& checkpoint, const std::string& name, int64_t size,
                      bool with_bias) {
  return {.weight = load_vector(checkpoint, name + ".weight", size),
          .bias = with_bias ? load_vector(checkpoint, name + ".bias", size) : Tensor()};
}

Linear load_linear(const Checkpoint& checkpoint, const std::string& name, int64_t inputs,
                   int64_t outputs, bool with_bias) {
  return {.weight = load_matrix(checkpoint, name + ".weight", {outputs, inputs}),
          .input_major = false,
          .bias = with_bias ? load_vector(checkpoint, name + ".bias", outputs) : Tensor()};
}

Weights load_weights(const Checkpoint& checkpoint) {
  const std::string& type = checkpoint.config().model_type;
  if (type == "gpt2") return load_gpt2(checkpoint);
  if (type == "gpt_neox") return load_gpt_neox(checkpoint);
  return load_llama(checkpoint);  // read_config lets no other type through
}

}  // namespace dofla
