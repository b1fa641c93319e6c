#pragma once

#include "dofla/ops/adam.h"

namespace dofla::cuda {

void adam_step(const Tensor& gradient, const AdamOptions& options, AdamMoments& moments,
               Tensor& parameter);
double sum_of_squares(std::span<const Tensor> all);  // of the elements of all tensors together
void scale(float factor, Tensor& x);

}  // namespace dofla::cuda
