#include "dofla/model/layers.h"

#include "dofla/ops/activation.h"
#include "dofla/ops/norm.h"

namespace dofla {

Dense::Norm norm_of(const ModelConfig& config, const NormWeights& norm) {
  return {norm.weight, norm.bias, config.norm_epsilon, config.norm == Norm::kLayer};
}

Tensor normalise_backward(const ModelConfig& config, const NormWeights& norm, const Tensor& x,
                          const Tensor& grad, const Tensor& past, NormWeights* gradient) {
  Tensor* weight = gradient == nullptr ? nullptr : &gradient->weight;
  if (config.norm == Norm::kRms)
    return rms_norm_backward(x, norm.weight, config.norm_epsilon, grad, weight, past);
  Tensor* bias = gradient == nullptr ? nullptr : &gradient->bias;
  return layer_norm_backward(x, norm.weight, config.norm_epsilon, grad, weight, bias, past);
}

Tensor activated_product_backward(Activation activation, const Tensor& grad_y, const Linear& linear,
                                  const Tensor& inner) {
  if (activation == Activation::kGeluTanh) return matmul_gelu_tanh_backward(grad_y, linear, inner);
  Tensor grad = matmul_backward(grad_y, linear);
  activate_backward(activation, inner, grad);
  return grad;
}

}  // namespace dofla
