#include "dofla/ops/dense.h"

#include "dofla/ops/cuda/few_row_kernels.h"
#include "dofla/ops/cuda/tensors.h"

namespace dofla::cuda {
namespace {

// A single launch does all of a layer for few rows, in BF16, with a weight [N, K] and inputs in
// whole packs of eight.
bool takes_few_rows(const Tensor& x, const Dense& layer) {
  for (const Tensor* tensor :
       {&x, &layer.linear.weight, &layer.linear.bias, &layer.factor, &layer.residual})
    if (!is_bf16(*tensor)) return false;
  if (layer.linear.input_major || !begins_at_pack(x) || !begins_at_pack(layer.linear.weight))
    return false;
  return few_rows_fit(x.size(0), x.size(1), layer.linear.outputs(), layer.norm.weight.defined());
}

void few_row_dense(const Tensor& x, const Dense& layer, Tensor& y) {
  FewRowProduct p = {};
  p.rows = x.size(0), p.inputs = x.size(1), p.outputs = y.size(1);
  p.x = x.raw();
  p.norm = {floats(layer.norm.weight), floats(layer.norm.bias),
            static_cast<float>(layer.norm.epsilon), layer.norm.centre};
  p.weight = layer.linear.weight.raw(), p.bias = layer.linear.bias.raw();
  p.nonlinear = layer.activation.has_value();
  p.f = layer.activation.value_or(Activation::kRelu);
  p.factor = layer.factor.raw();
  p.residual = layer.residual.raw();
  p.y = y.mutable_raw(), p.y_element = element_of(y);
  cuda_check(launch_few_row_product(p, stream_of(x)), "matrix product");
}

}  // namespace

const FewRowBackend kFewRow = {takes_few_rows, few_row_dense};

}  // namespace dofla::cuda
