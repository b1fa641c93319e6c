// What a run will take on GPUs that need not be here, from the shape of a model alone: the work of
// model/operations.h at the shares of a GPU's peak that were measured (docs/scale.md, "Before you
// begin"), and the bytes of what a GPU holds meanwhile.
#pragma once

#include <string>
#include <vector>

#include "dofla/checkpoint/hf_config.h"
#include "dofla/train/optimizer.h"

namespace dofla {

// One H200 as it measured itself, unless something else is said.
struct Machine {
  int64_t gpus = 1;
  double products = 779e12;  // operations a second of a large BF16 product, a GPU
  double memory = 141e9;     // bytes, a GPU
};

struct EstimateOptions {
  int64_t length = 1024;                      // tokens of a window
  int64_t batch = 8;                          // windows a step, over all GPUs
  int64_t features = 64;                      // M, of every head
  MomentType moments = MomentType::kFloat32;  // of fine-tuning
  Machine machine = {};
};

struct StageEstimate {
  std::string stage;             // as one would type it
  double tokens_per_second = 0;  // of all GPUs together
  double bytes = 0;              // that a GPU must hold

  bool fits(const Machine& machine) const { return bytes <= machine.memory; }
  double seconds(double tokens) const { return tokens / tokens_per_second; }
};

// Of distillation layer by layer and by kl, and of fine-tuning beside a teacher: everything, the
// attention with its projections, or features alone. GPUs share the windows of a batch, each with
// the whole model but its share of the optimizer's moments. Throws std::invalid_argument unless all
// options are positive and a batch has a window for every GPU.
std::vector<StageEstimate> estimate_stages(const ModelConfig& config,
                                           const EstimateOptions& options);

}  // namespace dofla
