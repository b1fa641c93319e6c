// AdamW over all parameters of a model, with clipping by their common norm. Gradients may have been
// accumulated over as many backward passes as memory asks for: they are sums, and each pass carries
// its share of the mean.
#pragma once

#include <string>
#include <vector>

#include "dofla/model/gradients.h"
#include "dofla/ops/adam.h"

namespace dofla {

struct OptimizerOptions {
  double beta1 = 0.9;
  double beta2 = 0.999;
  double epsilon = 1e-8;
  // Of the matrices of the model, embeddings among them. Norms, biases and features are not
  // decayed: nothing says that they should be near 0.
  double weight_decay = 0;
  // The learning rate of features is so many times that of the weights: z and log α lie further
  // apart than weights do.
  double feature_rate = 1;
  double clip = 1;  // the largest norm of all gradients together; 0: any
};

class Optimizer {
 public:
  // Of `parameters`, handles to a model's memory as parameters(model, what) gives them. Moments are
  // on the same device.
  Optimizer(NamedTensors parameters, const OptimizerOptions& options);

  // One step on gradients with the same names in the same order, which are clipped in place. False
  // if their norm is not finite: then nothing has changed but the count of skipped steps.
  bool step(NamedTensors gradients, double learning_rate);

  int64_t skipped() const { return skipped_; }
  const NamedTensors& parameters() const { return parameters_; }

  // Parameters under their names, moments and the count: all that a step depends on, on the CPU.
  // Restoring writes into the model, and throws Error on what is missing or misshapen.
  void save(NamedTensors& tensors) const;
  void restore(const Safetensors& file);

 private:
  NamedTensors parameters_;
  OptimizerOptions options_;
  std::vector<AdamMoments> moments_;  // one a parameter
  int64_t skipped_ = 0;
};

}  // namespace dofla
