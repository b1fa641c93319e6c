#include "dofla/ops/feature_step.h"

#include <array>
#include <cmath>
#include <limits>

namespace dofla::cpu {
namespace {

void divide(double norm, Tensor gradient) {
  float* data = gradient.data<float>();
  for (int64_t i = 0; i < gradient.count(); ++i) data[i] = static_cast<float>(data[i] / norm);
}

Tensor feature_step(const Tensor& loss, const Tensor& grad_z, const Tensor& grad_log_alpha,
                    const FeatureStepOptions& options, FeatureMoments& moments,
                    Features& features) {
  const std::vector<int64_t> offsets = features.offsets();
  Tensor norms({features.heads()}, DType::kF64);
  Tensor unit_z = grad_z.clone(), unit_log_alpha = grad_log_alpha.clone();
  bool finite = true;
  for (size_t head = 0; head < features.counts.size(); ++head) {
    const int64_t begin = offsets[head], end = offsets[head + 1];
    const std::array own = {grad_z.slice(begin, end), grad_log_alpha.slice(begin, end)};
    double norm = std::sqrt(kAdam.sum_of_squares(own));
    if (!std::isfinite(norm) || !std::isfinite(loss.data<double>()[head])) {
      norm = std::numeric_limits<double>::quiet_NaN();
      finite = false;
    } else if (norm > 0) {
      divide(norm, unit_z.slice(begin, end));
      divide(norm, unit_log_alpha.slice(begin, end));
    }
    norms.data<double>()[head] = norm;
  }
  if (finite) {
    kAdam.adam_step(unit_z, {.learning_rate = options.lr_z}, moments.z, features.z);
    kAdam.adam_step(unit_log_alpha, {.learning_rate = options.lr_alpha}, moments.log_alpha,
                    features.log_alpha);
  }
  return norms;
}

}  // namespace

const FeatureStepBackend kFeatureStep = {.feature_step = feature_step};

}  // namespace dofla::cpu
