// The optimizer step on the features of a layer, in two launches without a synchronisation.
#pragma once

#include "dofla/ops/adam_factors.h"
#include "dofla/ops/cuda/element.h"

namespace dofla::cuda {

// One part of the features: what belongs to head h of it are the elements [begin · size, end ·
// size) with [begin, end) the head's features, or the element h.
struct FeatureStepPart {
  AdamFactors factors;
  int64_t size;       // elements a feature; 0: one a head
  const float* grad;  // null: the features have no such part
  float *mean, *square, *value;
};

struct FeatureStepArguments {
  int64_t heads, group;    // that have a state; query heads of each
  const int64_t* offsets;  // [heads + 1]: first feature of every head
  const double* loss;      // [heads · group]
  double* norms;           // [heads]: written
  FeatureStepPart parts[4];
};

cudaError_t launch_feature_step(const FeatureStepArguments& arguments, cudaStream_t stream);

}  // namespace dofla::cuda
