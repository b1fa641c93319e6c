#include "dofla/ops/feature_loss.h"

#include <numeric>

namespace dofla {
namespace {

const FeatureLossBackend& backend(const Device& device) {
  return device.is_cuda() ? cuda::kFeatureLoss : cpu::kFeatureLoss;
}

}  // namespace

double FeatureLoss::total() const {
  const Tensor here = per_head.to(Device());
  return std::accumulate(here.data<double>(), here.data<double>() + here.count(), 0.0);
}

FeatureLoss feature_loss(const Tensor& q, const Tensor& k, const Features& features,
                         const FeatureLossOptions& options) {
  require_queries_and_keys(q, k, features, "feature loss: q", "feature loss: k");
  require(q.size(0) >= 1 && q.size(2) >= 1, "feature loss: no tokens in q {}",
          to_string(q.shape()));
  return backend(q.device()).feature_loss(q, k, features, options);
}

}  // namespace dofla
