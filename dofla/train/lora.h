// Low-rank updates (LoRA): every matrix W of the projections around attention is W0 + B·A, of which
// A and B learn and W0 stays. Between two steps the model holds W itself, so that forward and
// backward know nothing of it, and a model that is saved is one like any other. The gradients of
// the factors follow from that of W: dA = Bᵀ·dW and dB = dW·Aᵀ.
#pragma once

#include <map>
#include <string>

#include "dofla/model/transformer.h"

namespace dofla {

class LoraUpdates {
 public:
  // Of a trainable model, whose matrices are W0 now. A is Gaussian of variance 1/inputs, B is 0.
  // Throws Error if the rank is not smaller than the sides of every matrix.
  LoraUpdates(const Transformer& model, int64_t rank, uint64_t seed);

  // The same list with the factors, "<name>.lora_a" and "<name>.lora_b", in place of every matrix:
  // of parameters, and of gradients in the same order.
  NamedTensors factors(const NamedTensors& parameters) const;
  NamedTensors gradients(const NamedTensors& of_weights) const;

  // Writes W0 + B·A into the model's parameters.
  void apply();

 private:
  struct Update {
    Linear matrix;  // W, the model's own
    Tensor start;   // W0
    Tensor a;       // [rank, inputs]
    Tensor b;       // [rank, outputs]: B transposed
  };
  std::map<std::string, Update> updates_;  // by the name of the matrix
};

}  // namespace dofla
