#include "dofla/ops/dense.h"

#include "dofla/ops/activation.h"
#include "dofla/ops/norm.h"

namespace dofla {
namespace {

// A decoder comes here for every token, and wants no message unless it is needed.
void check(const Tensor& x, const Dense& layer) {
  const Linear& linear = layer.linear;
  if (x.rank() != 2 || linear.weight.rank() != 2 || x.size(1) != linear.inputs())
    throw std::invalid_argument(fmt::format("dense: x {} meets a weight {}", to_string(x.shape()),
                                            to_string(linear.weight.shape())));
  for (const Tensor* vector : {&layer.norm.weight, &layer.norm.bias})
    if (vector->defined()) require_shape(*vector, {linear.inputs()}, "dense: norm");
  if (linear.bias.defined()) require_shape(linear.bias, {linear.outputs()}, "dense: bias");
  for (const Tensor* rows : {&layer.factor, &layer.residual})
    if (rows->defined())
      require_shape(*rows, {x.size(0), linear.outputs()}, "dense: factor and residual");
}

// activation(W x + bias), and what the activation received.
Tensor activated_product(const Tensor& x, const Dense& layer, DType type, Tensor* product) {
  if (layer.activation == Activation::kGeluTanh && type == x.dtype())
    return matmul_gelu_tanh(x, layer.linear, product);
  Tensor y = matmul(x, layer.linear, type);
  if (product != nullptr) *product = y;
  if (!layer.activation) return y;
  if (product != nullptr) return activated(*layer.activation, y);
  activate(*layer.activation, y);
  return y;
}

}  // namespace

Tensor normalise(const Dense::Norm& norm, const Tensor& x) {
  if (!norm.weight.defined()) return x;
  return norm.centre ? layer_norm(x, norm.weight, norm.bias, norm.epsilon)
                     : rms_norm(x, norm.weight, norm.epsilon);
}

bool is_single_launch(const Tensor& x, const Dense& layer) {
  return x.device().is_cuda() && cuda::kFewRow.takes(x, layer);
}

Tensor dense(const Tensor& x, const Dense& layer, std::optional<DType> result, Tensor* product) {
  if (product == nullptr && is_single_launch(x, layer)) {
    check(x, layer);
    Tensor y({x.size(0), layer.linear.outputs()}, result.value_or(x.dtype()), x.device());
    cuda::kFewRow.run(x, layer, y);
    return y;
  }
  return dense_after_norm(normalise(layer.norm, x), layer, result, product);
}

Tensor dense_after_norm(const Tensor& normal, const Dense& layer, std::optional<DType> result,
                        Tensor* product) {
  check(normal, layer);
  require(product == nullptr || !layer.factor.defined(),
          "dense: a factor would change the product");
  const DType type = result.value_or(normal.dtype());
  if (layer.residual.defined() && !layer.activation && !layer.factor.defined() &&
      product == nullptr && type == normal.dtype())
    return matmul_add(normal, layer.linear, layer.residual);
  Tensor y = activated_product(normal, layer, type, product);
  if (layer.factor.defined()) multiply(y, layer.factor);
  if (layer.residual.defined()) add(y, layer.residual);
  return y;
}

}  // namespace dofla
