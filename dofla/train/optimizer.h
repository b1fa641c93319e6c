// AdamW over all parameters of a model, with clipping by their common norm. Gradients may have been
// accumulated over as many backward passes as memory asks for: they are sums, and each pass carries
// its share of the mean. Of several ranks each holds the moments of its share of the parameters,
// makes the step of that share, and hands it to the others (ZeRO 1).
#pragma once

#include <string>
#include <vector>

#include "dofla/core/names.h"
#include "dofla/distributed/shards.h"
#include "dofla/model/gradients.h"
#include "dofla/ops/adam.h"

namespace dofla {

enum class MomentType {
  kFloat32,
  kBFloat16,  // rounded stochastically: docs/finetune.md, "16-bit moments"
};

template <>
struct Names<MomentType> {
  static constexpr std::string_view kWhat = "type of moments";
  static constexpr std::array kAll = {Name{MomentType::kFloat32, "float32"},
                                      Name{MomentType::kBFloat16, "bf16"}};
};

DType dtype_of(MomentType type);

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
  MomentType moments = MomentType::kFloat32;
  uint64_t seed = 0;  // of the chance by which moments in 16 bits are rounded
};

class Optimizer {
 public:
  // Of `parameters`, handles to a model's memory as parameters(model, what) gives them, the same on
  // all ranks. Moments are on the same device. `copies`, none or one a parameter, are what a model
  // on a GPU computes with, as rounded_copies(model, what) gives them: they follow every change.
  Optimizer(NamedTensors parameters, const OptimizerOptions& options, const Group& group = {},
            std::vector<Tensor> copies = {});

  // All ranks, before a step of several of them on the CPU: its gradients, which are yet to be
  // made, are added up over the ranks meanwhile. finished(layer) says that those whose layers[i] is
  // not below it are made.
  void expect(const NamedTensors& gradients, std::span<const int64_t> layers);
  void finished(int64_t layer);

  // All ranks. One step on the sums over the ranks of gradients with the same names in the same
  // order; one process alone only reads them. False if their norm is not finite: then nothing has
  // changed but the count of skipped steps.
  bool step(const NamedTensors& gradients, double learning_rate);

  int64_t skipped() const { return skipped_; }
  const NamedTensors& parameters() const { return parameters_; }

  // All ranks. Adds on the first one parameters under their names, moments and the count: all that
  // a step depends on, on the CPU, whatever the number of ranks. Restoring writes into the model,
  // and throws Error on what is missing or misshapen.
  void save(NamedTensors& tensors) const;
  void restore(const Safetensors& file);

  // What else ranks keep of their shares: copies of them on the CPU, and the way back into the
  // parameters of all ranks. saved_copy() adds whole tensors on the first rank, named after the
  // parameters, and restored_copy() takes an own share from them.
  using Copy = std::vector<Tensor>;  // by the shards that this rank holds
  Copy copy() const;
  void take(const Copy& copy);                                                          // all ranks
  void save_copy(const std::string& prefix, const Copy& copy, NamedTensors& to) const;  // all ranks
  Copy restore_copy(const std::string& prefix, const Safetensors& file) const;

 private:
  void set_rates(double learning_rate);
  Tensor norm_of_sums(std::span<const Tensor> gradients);
  void hand_out();
  void round_copies();

  NamedTensors parameters_;
  std::vector<Tensor> tensors_;  // the same without their names
  std::vector<Tensor> copies_;   // undefined where there is none
  OptimizerOptions options_;
  Shards shards_;
  std::vector<AdamParameter> held_;  // the shards that this rank holds
  int64_t steps_ = 0, skipped_ = 0;

  std::vector<Tensor> expected_;  // gradients that are being summed
  std::unique_ptr<ShardedSum> sum_;
};

}  // namespace dofla
