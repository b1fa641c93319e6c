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
                         const FeatureLossOptions& options) {
  const FeatureLossProblem problem = {.batch = q.size(0),
                                      .heads = q.size(1),
                                      .key_heads = k.size(1),
                                      .tokens = q.size(2),
                                      .width = q.size(3),
                                      .counts = features.counts.data(),
                                      .element = element_of(q),
                                      .loss = pair_loss(options.kind),
                                      .causal = options.mask == PairMask::kCausal,
                                      .sequence_scale = options.scale == L2Scale::kSequence,
                                      .subtract_norm = features.subtract_norm};
  const FeatureLossInputs inputs = {heads_of(q), heads_of(k), floats(features.z),
                                    floats(features.log_alpha)};
  int64_t bytes = 0;
  cuda_check(feature_loss_workspace(problem, inputs, &bytes), "feature loss");
  const Device& device = q.device();
  Tensor workspace({bytes}, DType::kU8, device);
  FeatureLoss out = {Tensor({features.heads()}, DType::kF64, device),
                     Tensor(features.z.shape(), DType::kF32, device),
                     Tensor(features.log_alpha.shape(), DType::kF32, device)};
  cuda_check(launch_feature_loss(problem, inputs,
                                 {static_cast<double*>(out.per_head.mutable_raw()),
                                  mutable_floats(out.grad_z), mutable_floats(out.grad_log_alpha)},
                                 workspace.mutable_raw(), stream_of(q)),
             "feature loss");
  return out;
}

}  // namespace

const FeatureLossBackend kFeatureLoss = {.feature_loss = feature_loss};

}  // namespace dofla::cuda
