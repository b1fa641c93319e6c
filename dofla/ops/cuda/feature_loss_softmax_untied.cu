#include "dofla/ops/cuda/feature_loss_pair_kernel.cuh"

namespace dofla::cuda::feature_pairs {

cudaError_t untied_softmax_pairs(const PairTask& task, const PairLaunch& launch,
                                 cudaStream_t stream) {
  return launch_pairs<PairLoss::kSoftmax, true>(task, launch, stream);
}

}  // namespace dofla::cuda::feature_pairs
