// One optimizer step on the features of a layer: Adam, with every head's gradient scaled to norm 1,
// that of all that belongs to it together: z, log α and, of untied features, η of a key head and
// the u of its query heads. The scale of an objective says nothing of how well a head does (that of
// l2 is 1e-20 where K̂ is still far from K), and a batch with one enormous gradient counts no more
// than another.
#pragma once

#include "dofla/ops/adam.h"
#include "dofla/ops/features.h"

namespace dofla {

struct FeatureMoments {
  AdamMoments z, log_alpha, u, norm_weight;
};

FeatureMoments new_feature_moments(const Features& features);

struct FeatureStepOptions {
  double lr_z = 0;  // of u as well
  double lr_alpha = 0;
  double lr_norm = 0;  // of η
};

// A step in which a head's loss or gradient is not finite changes nothing but the count of steps.
// Returns [heads] in F64: the norm of the gradient of every head that has a state, NaN for a head
// that was not finite. The result is on the features' device, and nothing waits for it.
Tensor feature_step(const Tensor& loss,  // [H] in F64, a query head each
                    const FeatureGradients& grad, const FeatureStepOptions& options,
                    FeatureMoments& moments, Features& features);

// The learning rate of a part of the features.
inline double learning_rate(const FeatureStepOptions& options, std::string_view part) {
  if (part == "log_alpha") return options.lr_alpha;
  return part == "norm_weight" ? options.lr_norm : options.lr_z;
}

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
