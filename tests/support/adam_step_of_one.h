// A step of Adam on one parameter that is held in pieces.
#pragma once

#include "dofla/ops/adam.h"

namespace dofla::test {

inline void step_of_one(const Tensor& gradient, const AdamOptions& options, AdamMoments& moments,
                        const Tensor& value) {
  AdamParameter one = {
      .value = value, .gradient = gradient, .moments = moments, .options = options};
  adam_step({&one, 1});
  moments = one.moments;
}

inline double norm_of(std::span<const Tensor> gradients) {
  return gradient_norm(gradients).to(Device()).data<double>()[0];
}

}  // namespace dofla::test
