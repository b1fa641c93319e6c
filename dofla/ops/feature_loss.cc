#include "dofla/ops/feature_loss.h"

#include <numeric>

#include "dofla/ops/cpu/feature_loss.h"
#include "dofla/ops/cuda/feature_loss.h"

namespace dofla {

double FeatureLoss::total() const {
  const Tensor here = per_head.to(Device());
  return std::accumulate(here.data<double>(), here.data<double>() + here.count(), 0.0);
}

FeatureLoss feature_loss(const Tensor& q, const Tensor& k, const Features& features,
                         const FeatureLossOptions& options) {
  require_heads(q, features, "feature loss: q");
  require_shape(q, {q.size(0), features.heads(), q.size(2), q.size(3)}, "feature loss: q");
  require_heads(k, features, "feature loss: k");
  require_shape(k, {q.size(0), k.size(1), q.size(2), q.size(3)}, "feature loss: k");
  require(q.size(0) >= 1 && q.size(2) >= 1, "feature loss: no tokens in q {}",
          to_string(q.shape()));
  return q.device().is_cuda() ? cuda::feature_loss(q, k, features, options)
                              : cpu::feature_loss(q, k, features, options);
}

}  // namespace dofla
