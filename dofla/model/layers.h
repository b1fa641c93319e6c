// The pieces of a decoder that forward and backward share: the norm and the activation that its
// configuration chooses, each with its backward.
#pragma once

#include "dofla/model/weights.h"

namespace dofla {

Tensor normalise(const ModelConfig& config, const NormWeights& norm,
                 const Tensor& x);  // [R, C] -> [R, C]

// From the gradient of normalise's output to that of x; adds those of the norm's weights to
// `gradient` unless it is null.
Tensor normalise_backward(const ModelConfig& config, const NormWeights& norm,
                          const Tensor& x,     // [R, C], what the forward received
                          const Tensor& grad,  // [R, C]
                          NormWeights* gradient);

// The activation of matmul(x, linear); what it received goes to `inner` unless that is null.
Tensor activated_product(Activation activation,
                         const Tensor& x,       // [R, K]
                         const Linear& linear,  // -> [R, N]
                         Tensor* inner);

// The gradient of `inner` in y = matmul(activation(inner), linear).
Tensor activated_product_backward(Activation activation,
                                  const Tensor& grad_y,  // [R, N]
                                  const Linear& linear,  // -> [R, K]
                                  const Tensor& inner);  // [R, K]

}  // namespace dofla
