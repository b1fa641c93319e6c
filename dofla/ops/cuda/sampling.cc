#include "dofla/ops/sampling.h"

#include "dofla/ops/cuda/sampling_kernels.h"
#include "dofla/ops/cuda/tensors.h"

namespace dofla::cuda {
namespace {

void draw_tokens(const Tensor& logits, const Tensor& draws, Tensor& ids) {
  cuda_check(launch_draw_tokens(floats(logits), static_cast<const double*>(draws.raw()),
                                logits.size(0), logits.size(1),
                                static_cast<int64_t*>(ids.mutable_raw()), stream_of(logits)),
             "drawing tokens");
}

}  // namespace

const SamplingBackend kSampling = {.draw_tokens = draw_tokens};

}  // namespace dofla::cuda
