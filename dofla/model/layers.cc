#include "dofla/model/layers.h"

#include "dofla/ops/activation.h"
#include "dofla/ops/norm.h"

namespace dofla {

Tensor normalise(const ModelConfig& config, const NormWeights& norm, const Tensor& x) {
  return config.norm == Norm::kLayer ? layer_norm(x, norm.weight, norm.bias, config.norm_epsilon)
                                     : rms_norm(x, norm.weight, config.norm_epsilon);
}

Tensor normalise_backward(const ModelConfig& config, const NormWeights& norm, const Tensor& x,
                          const Tensor& grad, NormWeights* gradient) {
  Tensor* weight = gradient == nullptr ? nullptr : &gradient->weight;
  if (config.norm == Norm::kRms)
    return rms_norm_backward(x, norm.weight, config.norm_epsilon, grad, weight);
  Tensor* bias = gradient == nullptr ? nullptr : &gradient->bias;
  return layer_norm_backward(x, norm.weight, config.norm_epsilon, grad, weight, bias);
}

void activate(Activation activation, Tensor& x) {
  switch (activation) {
    case Activation::kGelu:
      return gelu(x);
    case Activation::kGeluTanh:
      return gelu_tanh(x);
    case Activation::kSilu:
      return silu(x);
    case Activation::kRelu:
      return relu(x);
  }
}

void activate_backward(Activation activation, const Tensor& x, Tensor& grad) {
  switch (activation) {
    case Activation::kGelu:
      return gelu_backward(x, grad);
    case Activation::kGeluTanh:
      return gelu_tanh_backward(x, grad);
    case Activation::kSilu:
      return silu_backward(x, grad);
    case Activation::kRelu:
      return relu_backward(x, grad);
  }
}

Tensor position_ids(int64_t batch, int64_t tokens, int64_t first) {
  Tensor positions({batch * tokens}, DType::kI64);
  for (int64_t i = 0; i < batch * tokens; ++i) positions.data<int64_t>()[i] = first + i % tokens;
  return positions;
}

}  // namespace dofla
