#include "dofla/ops/feature_loss.h"

#include <numeric>

namespace dofla {
namespace {

const FeatureLossBackend& feature_loss_backend(const Device& device) {
  return device.is_cuda() ? cuda::kFeatureLoss : cpu::kFeatureLoss;
}

}  // namespace

double FeatureLoss::total() const {
  const Tensor here = per_head.to(Device());
  return std::accumulate(here.data<double>(), here.data<double>() + here.count(), 0.0);
}

FeatureLoss feature_loss(const Tensor& q, const Tensor& k, const Features& features,
                         const FeatureLossOptions& options, const Tensor& rest) {
  require_queries_and_keys(q, k, features, "feature loss: q", "feature loss: k");
  require(q.size(0) >= 1 && q.size(2) >= 1, "feature loss: no tokens in q {}",
          to_string(q.shape()));
  const int64_t block = options.block;
  require(block == 1 || options.mask == PairMask::kCausal,
          "feature loss: blocks of {} need the causal mask", block);
  require(block >= 1 && 64 % block == 0 && q.size(2) % block == 0,
          "feature loss: a block of {} does not divide 64 and {} tokens", block, q.size(2));
  if (rest.defined()) {
    require_shape(rest, {q.size(0), q.size(1), q.size(2)}, "feature loss: rest");
    require(rest.dtype() == DType::kF32 && rest.device() == q.device(),
            "feature loss: rest has to be F32 on the device of q");
  }
  return feature_loss_backend(q.device()).feature_loss(q, k, features, options, rest);
}

}  // namespace dofla
