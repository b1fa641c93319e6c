// One optimizer step on the features of a layer: Adam, with every head's gradient scaled to norm 1.
// The scale of an objective says nothing of how well a head does (that of l2 is 1e-20 where K̂ is
// still far from K), and a batch with one enormous gradient counts no more than another.
#pragma once

#include "dofla/ops/adam.h"
#include "dofla/ops/features.h"

namespace dofla {

struct FeatureMoments {
  AdamMoments z, log_alpha;
};

FeatureMoments new_feature_moments(const Features& features);

struct FeatureStepOptions {
  double lr_z = 0;
  double lr_alpha = 0;
};

// A step in which a head's loss or gradient is not finite changes nothing but the count of steps.
// Returns [H] in F64: the norm of every head's gradient, NaN for a head that was not finite. The
// result is on the features' device, and nothing waits for it.
Tensor feature_step(const Tensor& loss,            // [H] in F64
                    const Tensor& grad_z,          // [ΣM, D]
                    const Tensor& grad_log_alpha,  // [ΣM]
                    const FeatureStepOptions& options, FeatureMoments& moments, Features& features);

// What a device has to implement; ops/feature_step.cc checks the arguments and picks the device.
struct FeatureStepBackend {
  decltype(&dofla::feature_step) feature_step;  // with the step counted already
};
namespace cpu {
extern const FeatureStepBackend kFeatureStep;
}
namespace cuda {
extern const FeatureStepBackend kFeatureStep;
}

}  // namespace dofla
