// The pieces of a decoder that forward and backward share: the norm and the activation that its
// configuration chooses, each with its backward.
#pragma once

#include "dofla/model/weights.h"
#include "dofla/ops/dense.h"

namespace dofla {

// The norm as the dense layer behind it takes it.
Dense::Norm norm_of(const ModelConfig& config, const NormWeights& norm);

// From the gradient of the norm's output to that of x, added to `past`, what came around the norm,
// unless that is undefined; adds those of the norm's weights to `gradient` unless it is null.
Tensor normalise_backward(const ModelConfig& config, const NormWeights& norm,
                          const Tensor& x,     // [R, C], what the forward received
                          const Tensor& grad,  // [R, C]
                          const Tensor& past,  // [R, C]
                          NormWeights* gradient);

// The gradient of `inner` in y = matmul(activation(inner), linear).
Tensor activated_product_backward(Activation activation,
                                  const Tensor& grad_y,  // [R, N]
                                  const Linear& linear,  // -> [R, K]
                                  const Tensor& inner);  // [R, K]

}  // namespace dofla
