// A decoder's weights under one set of names, whatever its family calls them. Matrices stay mapped
// in the type of the checkpoint; norms and biases are small and widened to float32.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "dofla/checkpoint/checkpoint.h"
#include "dofla/ops/heads.h"
#include "dofla/ops/matmul.h"

namespace dofla {

struct NormWeights {
  Tensor weight;  // [C]
  Tensor bias;    // [C], undefined for RMS norms
};

struct LayerWeights {
  NormWeights attention_norm;
  std::vector<Linear> projections;  // one fused, or one each for q, k, v
  HeadColumns q, k, v;              // of the projections: families fuse and interleave differently
  Tensor q_norm, k_norm;            // [D], undefined without q/k norms
  Linear attention_output;

  NormWeights mlp_norm;
  Linear mlp_gate;  // undefined weight when the MLP is not gated
  Linear mlp_up;
  Linear mlp_down;
};

struct Weights {
  Tensor token_embedding;     // [V, C]
  Tensor position_embedding;  // [context, C], undefined with rotary embedding
  std::vector<LayerWeights> layers;
  NormWeights final_norm;
  Linear head;  // [V, C]

  // Each of these once (a tied head is the token embedding), under its name in the checkpoint.
  NamedTensors parameters;
};

// Every tensor of a layer, defined or not.
void each_tensor(const LayerWeights& layer, const std::function<void(const Tensor&)>& see);

// Throws Error on a missing or misshapen tensor, and on one that the model has no use for.
Weights load_weights(const Checkpoint& checkpoint);

// The same structure with change(tensor) in place of every tensor. What shared memory shares it
// again: a tied head, and `parameters` with the rest.
Weights transform(const Weights& weights, const std::function<Tensor(const Tensor&)>& change);

// A copy on a GPU. In BF16 (matrices and biases; norms stay in F32) it is to compute with, not to
// train: `parameters` stays empty, and layers lie [N, K], which decoding reads fastest. In F32 it
// has all that `weights` has.
Weights on_gpu(const Weights& weights, const Device& gpu, DType type);

// Copies in BF16 of weights in F32 on a GPU, laid out like them, to compute with while those are
// trained. Norms stay in F32 and are the very same tensors.
Weights rounded_copies(const Weights& weights);

// Hands out a checkpoint's tensors and remembers them by name.
class WeightReader {
 public:
  explicit WeightReader(const Checkpoint& checkpoint) : checkpoint_(checkpoint) {}

  const ModelConfig& config() const { return checkpoint_.config(); }
  bool contains(const std::string& name) const { return checkpoint_.contains(name); }

  Tensor matrix(const std::string& name, const Shape& shape);  // in its own type
  Tensor vector(const std::string& name, int64_t size);        // in float32
  NormWeights norm(const std::string& name, int64_t size, bool with_bias);
  Linear linear(const std::string& name, int64_t inputs, int64_t outputs, bool with_bias);

  const NamedTensors& parameters() const { return parameters_; }  // all that were read

 private:
  Tensor remember(const std::string& name, const Tensor& tensor);

  const Checkpoint& checkpoint_;
  NamedTensors parameters_;
};

// One short file a family: tensor names and wiring.
Weights load_gpt2(WeightReader& reader);
Weights load_gpt_neox(WeightReader& reader);
Weights load_llama(WeightReader& reader);  // llama, mistral, qwen2, qwen3

}  // namespace dofla
