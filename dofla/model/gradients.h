// What of a model is trained, and the gradients of it.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "dofla/model/attention.h"
#include "dofla/model/weights.h"

namespace dofla {

class Transformer;

struct Trained {
  bool weights = false;   // all of them: fine-tuning
  bool features = false;  // of every linear layer
};

// Sums in float32 that every backward adds to.
struct Gradients {
  std::optional<Weights> weights;          // laid out like the model's own
  std::vector<FeatureGradients> features;  // one a layer, or none at all

  void clear();  // to zero
};

Gradients new_gradients(const Transformer& model, Trained what);  // zeros

// What is trained, and its gradients: the same names in the same order. The tensors are handles to
// the model's own memory; weights can be written once Transformer::make_trainable was called.
// Weights come under their names in the checkpoint, features as "linear_attention.<layer>.z",
// ".log_alpha" and, where untied, ".u" and ".norm_weight".
NamedTensors parameters(const Transformer& model, Trained what);
NamedTensors parameters(const Gradients& gradients);

std::string feature_name(size_t layer, std::string_view part);
// The parts of a layer's features under those names.
NamedTensors named_features(size_t layer, const Features& features);

}  // namespace dofla
