// Linked instead of ops/cuda where dofla is built without CUDA. No tensor can then be on a GPU, so
// none of these is ever reached: they let the operations choose their device without #ifdef.
#include "dofla/ops/cuda/adam.h"
#include "dofla/ops/cuda/divergence.h"
#include "dofla/ops/cuda/feature_step.h"

namespace dofla::cuda {
namespace {

[[noreturn]] void refuse() {
  fail(
      "this build of dofla has no GPU support; build it with `make build CUDA=1`, or use "
      "--device cpu");
}

}  // namespace

void adam_step(const Tensor&, const AdamOptions&, AdamMoments&, Tensor&) {
  refuse();
}
Divergence divergence(const Tensor&, const Tensor&, const Tensor&) {
  refuse();
}
Tensor feature_step(const Tensor&, const Tensor&, const Tensor&, const FeatureStepOptions&,
                    FeatureMoments&, Features&) {
  refuse();
}

}  // namespace dofla::cuda
