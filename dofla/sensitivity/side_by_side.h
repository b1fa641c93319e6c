// Features of several sizes, trained on the same batches: the teacher runs once for all of them.
#pragma once

#include <vector>

#include "dofla/distill/train.h"
#include "dofla/distributed/group.h"

namespace dofla {

class SideBySide {
 public:
  // One set or more, with the same exact keys. The teacher must live as long as this.
  SideBySide(const Transformer& teacher, std::vector<FeatureSet> starts, const LayerwiseLoss& loss,
             const TrainOptions& options, const Group& group = {});
  SideBySide(const SideBySide&) = delete;

  // One optimizer step of every set on a batch of token ids [B, T], of which all ranks take some.
  void step(const Tensor& ids);

  size_t size() const { return trainers_.size(); }
  const FeatureTrainer& trainer(size_t set) const { return trainers_[set]; }

 private:
  // A trainer that is within its step and waits for the losses of its layers.
  struct Waiting {
    const FeatureSet* features;
    const Objective::Take* take;
  };

  void run_teacher(const Tensor& ids) const;

  const Transformer& teacher_;
  LayerwiseLoss loss_;
  Group group_;
  ExactKeySet exact_;  // that all sets have
  std::vector<FeatureTrainer> trainers_;
  std::vector<Waiting> waiting_;
};

}  // namespace dofla
