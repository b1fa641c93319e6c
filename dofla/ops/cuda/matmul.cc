#include "dofla/ops/matmul.h"

#include "dofla/ops/cuda/column_sum_kernels.h"
#include "dofla/ops/cuda/logit_panels.h"

namespace dofla::cuda {
namespace {

void product(const Tensor& x, const Linear& linear, Gemm how, Tensor& y) {
  if (linear.bias.defined()) {
    require(linear.bias.dtype() == y.dtype(), "matmul: bias in {}, result in {}",
            name(linear.bias.dtype()), name(y.dtype()));
    how.bias = linear.bias.raw();
  }
  gemm(x.device().context(), how, x.size(0), linear.outputs(), linear.inputs(), rows_of(x),
       weight_of(linear), y.mutable_raw(), element_of(y), y.size(1));
}

// cuBLASLt does not support, or is slow with, rows whose length is not a multiple of 8 (a
// vocabulary) and a bias that is not in the type of the result: the product then goes to a padded
// panel first.
void matmul(const Tensor& x, const Linear& linear, Tensor& y) {
  const Tensor& bias = linear.bias;
  const bool fits = linear.outputs() % 8 == 0 && (!bias.defined() || bias.dtype() == y.dtype());
  if (fits) return product(x, linear, {}, y);
  for_each_panel(x, linear, y.dtype(),
                 [&](int64_t begin, int64_t end, const LogitPanel& panel, const Tensor& logits) {
                   Tensor rows = y.slice(begin, end);
                   cuda_check(launch_copy_panel(panel, logits.raw(), bias.raw(),
                                                bias.defined() ? element_of(bias) : panel.element,
                                                rows.mutable_raw(), stream_of(x)),
                              "matrix product");
                 });
}

void matmul_add(const Tensor& x, const Linear& linear, const Tensor& addend, Tensor& y) {
  product(x, linear, {.beta = 1, .addend = addend.raw()}, y);
}

void matmul_gelu_tanh(const Tensor& x, const Linear& linear, Tensor& y, Tensor* inner) {
  product(x, linear,
          {.epilogue = Epilogue::kGelu, .inner = inner == nullptr ? nullptr : inner->mutable_raw()},
          y);
}

void matmul_gelu_tanh_backward(const Tensor& grad_y, const Linear& back, const Tensor& inner,
                               Tensor& grad) {
  product(grad_y, back, {.epilogue = Epilogue::kGeluSlope, .inner = const_cast<void*>(inner.raw())},
          grad);
}

// sums[n] += Σ_rows grad_y[r, n]
void add_column_sums(const Tensor& grad_y, Tensor& sums) {
  const Element element = element_of(grad_y);
  const int64_t columns = sums.count(), rows = grad_y.count() / columns;
  const int64_t blocks = column_sum_blocks(element, rows, columns);
  Tensor of_blocks({blocks, columns}, DType::kF32, grad_y.device());
  cuda_check(launch_column_sums(element, grad_y.raw(), rows, columns, mutable_floats(of_blocks),
                                stream_of(grad_y)),
             "bias gradient");
  cuda_check(launch_add_sums(floats(of_blocks), blocks, columns, mutable_floats(sums), nullptr,
                             stream_of(grad_y)),
             "bias gradient");
}

void add_weight_gradient(const Tensor& x, const Tensor& grad_y, Linear& gradient) {
  const int64_t rows = x.size(0), inputs = gradient.inputs(), outputs = gradient.outputs();
  Matrix from = rows_of(x), to = rows_of(grad_y);
  Matrix& left = gradient.input_major ? from : to;
  const Matrix& right = gradient.input_major ? to : from;
  left.transposed = true;
  gemm(x.device().context(), {.beta = 1}, gradient.input_major ? inputs : outputs,
       gradient.input_major ? outputs : inputs, rows, left, right, gradient.weight.mutable_raw(),
       Element::kF32, gradient.weight.size(1));
  if (gradient.bias.defined()) add_column_sums(grad_y, gradient.bias);
}

}  // namespace

const MatmulBackend kMatmul = {.matmul = matmul,
                               .add_weight_gradient = add_weight_gradient,
                               .matmul_add = matmul_add,
                               .matmul_gelu_tanh = matmul_gelu_tanh,
                               .matmul_gelu_tanh_backward = matmul_gelu_tanh_backward,
                               .gelu_columns = 8};  // what cuBLASLt requires

}  // namespace dofla::cuda
