#include "dofla/ops/feature_loss.h"

#include "dofla/ops/cuda/feature_loss_kernels.h"
#include "dofla/ops/cuda/head_tensors.h"

namespace dofla::cuda {
namespace {

PairLoss pair_loss(FeatureLossKind kind) {
  switch (kind) {
    case FeatureLossKind::kSoftmax:
      return PairLoss::kSoftmax;
    case FeatureLossKind::kL2:
      return PairLoss::kL2;
    case FeatureLossKind::kAttentionMse:
      return PairLoss::kAttentionMse;
  }
  throw std::invalid_argument("feature loss: unknown kind");
}

FeatureLoss feature_loss(const Tensor& q, const Tensor& k, const Features& features,
                         const FeatureLossOptions& options, const Tensor& rest) {
  const FeatureLossProblem problem = {.batch = q.size(0),
                                      .heads = q.size(1),
                                      .key_heads = k.size(1),
                                      .tokens = q.size(2),
                                      .width = q.size(3),
                                      .sharing = features.group(),
                                      .counts = features.counts.data(),
                                      .element = element_of(q),
                                      .loss = pair_loss(options.kind),
                                      .causal = options.mask == PairMask::kCausal,
                                      .block = options.block,
                                      .padded_rest = kPaddedRest,
                                      .sequence_scale = options.scale == L2Scale::kSequence,
                                      .subtract_norm = features.subtract_norm};
  const FeatureLossInputs inputs = {heads_of(q),        heads_of(k),
                                    floats(features.z), floats(features.log_alpha),
                                    floats(features.u), floats(features.norm_weight),
                                    floats(rest)};
  int64_t bytes = 0;
  cuda_check(feature_loss_workspace(problem, inputs, &bytes), "feature loss");
  const Device& device = q.device();
  Tensor workspace({bytes}, DType::kU8, device);
  FeatureLoss out = {Tensor({q.size(1)}, DType::kF64, device), gradients_like(features)};
  cuda_check(launch_feature_loss(problem, inputs,
                                 {static_cast<double*>(out.per_head.mutable_raw()),
                                  mutable_floats(out.grad.z), mutable_floats(out.grad.log_alpha),
                                  mutable_floats(out.grad.u), mutable_floats(out.grad.norm_weight)},
                                 workspace.mutable_raw(), stream_of(q)),
             "feature loss");
  return out;
}

}  // namespace

const FeatureLossBackend kFeatureLoss = {.feature_loss = feature_loss};

}  // namespace dofla::cuda
