// A decoder's weights under one set of names, whatever its family calls them. Matrices stay mapped
// in the type of the checkpoint; norms and biases are small and widened to float32.
#pragma once

#include <vector>

#include "dofla/checkpoint/checkpoint.h"
#include "dofla/ops/heads.h"
#include "dofla/ops/matmul.h"

namespace dofla {

struct NormWeights {
  Tensor weight;  // [C]
  Tensor bias;    // [C], undefined for RMS norms
};

// Where the queries (or keys, or values) come from: families fuse and interleave them differently.
struct HeadSource {
  size_t projection = 0;  // index into LayerWeights::projections
  HeadColumns columns;
};

struct LayerWeights {
  NormWeights attention_norm;
  std::vector<Linear> projections;  // one fused, or one each for q, k, v
  HeadSource q, k, v;
  Tensor q_norm, k_norm;  // [D], undefined without q/k norms
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
};

// Throws Error on a missing or misshapen tensor.
Weights load_weights(const Checkpoint& checkpoint);

// One short file a family: tensor names and wiring.
Weights load_gpt2(const Checkpoint& checkpoint);
Weights load_gpt_neox(const Checkpoint& checkpoint);
Weights load_llama(const Checkpoint& checkpoint);  // llama, mistral, qwen2, qwen3

// What the families share: a vector in float32, a norm, a dense layer called `name`.
Tensor load_vector(const Checkpoint& checkpoint, const std::string& name, int64_t size);
NormWeights load_norm(const Checkpoint& checkpoint, const std::string& name, int64_t size,
                      bool with_bias);
Tensor load_matrix(const Checkpoint& checkpoint, const std::string& name, const Shape& shape);
Linear load_linear(const Checkpoint& checkpoint, const std::string& name, int64_t inputs,
                   int64_t outputs, bool with_bias);

}  // namespace dofla
