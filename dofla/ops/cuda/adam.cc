#include "dofla/ops/cuda/adam.h"

#include "dofla/ops/cuda/element_kernels.h"
#include "dofla/ops/cuda/tensors.h"

namespace dofla::cuda {

void adam_step(const Tensor& gradient, const AdamOptions& options, AdamMoments& moments,
               Tensor& parameter) {
  cuda_check(launch_adam(adam_factors(options, moments.steps), parameter.count(), floats(gradient),
                         mutable_floats(moments.mean), mutable_floats(moments.square),
                         mutable_floats(parameter), stream_of(parameter)),
             "adam");
}

}  // namespace dofla::cuda
