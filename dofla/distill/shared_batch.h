// A batch whose rows several ranks share: each finds losses and gradients on its own rows, and what
// optimizers see is the sum over all of them.
#pragma once

#include <vector>

#include "dofla/distill/objective.h"
#include "dofla/distributed/group.h"

namespace dofla {

class SharedBatch {
 public:
  SharedBatch(const Group& group, const Tensor& ids);  // [B, T], the same on all ranks

  const Tensor& rows() const { return rows_; }  // of this rank, [b, T]; undefined if it has none

  // What this rank found, means over its rows; alone it is taken at once. All ranks come with the
  // same layers in the same order. `take` must live until finish().
  void add(int64_t layer, const FeatureLoss& loss, const Objective::Take& take);
  void add_nothing(int64_t layer, const Features& features, const Objective::Take& take);

  // All ranks: everything is taken, as means over all rows.
  void finish();

 private:
  struct Waiting {
    int64_t layer;
    FeatureLoss loss;
    const Objective::Take* take;
  };

  const Group& group_;
  Tensor rows_;
  double weight_ = 1;  // of the rows of this rank among all
  std::vector<Waiting> waiting_;
};

// The same objective, whose batches all ranks of the group share.
Objective shared_by(const Group& group, Objective objective);

}  // namespace dofla
