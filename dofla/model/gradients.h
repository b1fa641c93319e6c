// What of a model is trained, and the gradients of it.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_set>
#include <vector>

#include "dofla/model/attention.h"
#include "dofla/model/weights.h"

namespace dofla {

class Transformer;

struct Trained {
  bool weights = false;    // all of them
  bool attention = false;  // those of the projections around attention, and of its q/k norms
  bool features = false;   // of every linear layer
};

// Sums in float32 that every backward adds to. For what is not trained there is no memory, and no
// backward computes it.
struct Gradients {
  std::optional<Weights> weights;          // laid out like the model's own; frozen ones undefined
  std::vector<FeatureGradients> features;  // one a layer, or none at all
  Tensor memory;                           // [N], of which all these are parts
  // A backward calls it after each layer, from the last to the first. Set for the last backward of
  // several, it says whose gradients are complete; may be empty.
  std::function<void(int64_t layer)> finished = {};

  void clear();    // to zero
  Linear* head();  // null where it is not trained
};

// The memory of the weights that are trained.
std::unordered_set<const void*> trained_memory(const Weights& weights, Trained what);

Gradients new_gradients(const Transformer& model, Trained what);  // zeros

// What is trained, and its gradients: the same names in the same order. The tensors are handles to
// the model's own memory; weights can be written once Transformer::make_trainable was called.
// Weights come under their names in the checkpoint, features as "linear_attention.<layer>.z",
// ".log_alpha" and, where untied, ".u" and ".norm_weight".
NamedTensors parameters(const Transformer& model, Trained what);
NamedTensors parameters(const Gradients& gradients);

// Of each of these parameters the copy in BF16 that a model on a GPU computes with; undefined where
// it computes with the parameter itself.
std::vector<Tensor> rounded_copies(const Transformer& model, Trained what);

// Of each of these gradients the layer with which it is complete, −1 where that is at the end of a
// backward only: embeddings, and what is of no layer.
std::vector<int64_t> layers_of(const Gradients& gradients);

std::string feature_name(size_t layer, std::string_view part);
// The parts of a layer's features under those names.
NamedTensors named_features(size_t layer, const Features& features);

}  // namespace dofla
