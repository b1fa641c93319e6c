#include "dofla/ops/cuda/feature_loss_pair_kernel.cuh"

namespace dofla::cuda::feature_pairs {

cudaError_t l2_pairs(const PairTask& task, const PairLaunch& launch, cudaStream_t stream) {
  return launch_pairs<PairLoss::kL2, false>(task, launch, stream);
}

}  // namespace dofla::cuda::feature_pairs
