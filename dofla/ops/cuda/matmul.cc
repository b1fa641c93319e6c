#include "dofla/ops/cuda/matmul.h"

#include <algorithm>

#include "dofla/ops/cuda/cross_entropy_kernels.h"
#include "dofla/ops/cuda/gemm.h"
#include "dofla/ops/cuda/norm_kernels.h"
#include "dofla/ops/cuda/tensors.h"

namespace dofla::cuda {
namespace {

// Rows whose logits exist at a time: enough to fill the GPU, never the whole batch's.
constexpr int64_t kPanelRows = 4096;

Matrix rows_of(const Tensor& x) {
  return {x.raw(), element_of(x), x.size(1)};
}

// The weight as the right-hand side [K, N] of a product.
Matrix weight_of(const Linear& linear) {
  return {linear.weight.raw(), element_of(linear.weight), linear.weight.size(1),
          !linear.input_major};
}

void product(const Tensor& x, const Linear& linear, Gemm how, Tensor& y) {
  if (linear.bias.defined()) {
    require(linear.bias.dtype() == y.dtype(), "matmul: bias in {}, result in {}",
            name(linear.bias.dtype()), name(y.dtype()));
    how.bias = linear.bias.raw();
  }
  gemm(x.device().context(), how, x.size(0), linear.outputs(), linear.inputs(), rows_of(x),
       weight_of(linear), y.mutable_raw(), element_of(y), y.size(1));
}

// cuBLASLt is several times slower where an extent is not a multiple of 8: the vocabulary is taken
// in two parts, and the few tokens after the last such multiple are a product of their own.
template <class Body>
void for_each_part(int64_t vocabulary, const Body& body) {
  const int64_t even = vocabulary / 8 * 8;
  if (even > 0) body(0, even);
  if (even < vocabulary) body(even, vocabulary - even);
}

// A matrix without its first rows or columns.
Matrix from_row(Matrix m, int64_t row) {
  const int64_t bytes = m.element == Element::kF32 ? 4 : 2;
  m.data = static_cast<const std::byte*>(m.data) + row * bytes * (m.transposed ? 1 : m.stride);
  return m;
}
Matrix from_column(Matrix m, int64_t column) {
  m.transposed = !m.transposed;
  m = from_row(m, column);
  m.transposed = !m.transposed;
  return m;
}

// Products of rows [begin, end) of x with the weight, in rows of the panel's length.
void fill_panel(const Tensor& x, const Linear& head, int64_t begin, int64_t end, Tensor& logits) {
  for_each_part(head.outputs(), [&](int64_t first, int64_t count) {
    const Matrix to = from_column(rows_of(logits), first);
    gemm(x.device().context(), {}, end - begin, count, head.inputs(), rows_of(x.slice(begin, end)),
         from_column(weight_of(head), first), const_cast<void*>(to.data), to.element, to.stride);
  });
}

// Room for the logits of a panel, in rows of an even length.
Tensor new_panel(const Tensor& x, const Linear& head, DType type) {
  const int64_t stride = (head.outputs() + 63) / 64 * 64;
  return Tensor({std::min(x.size(0), kPanelRows), stride}, type, x.device());
}

// The rows of x in panels, each with its products with the weight:
// body(begin, end, panel, logits).
template <class Body>
void for_each_panel(const Tensor& x, const Linear& head, DType type, const Body& body) {
  const int64_t rows = x.size(0);
  Tensor logits = new_panel(x, head, type);
  for (int64_t begin = 0; begin < rows; begin += kPanelRows) {
    const int64_t end = std::min(rows, begin + kPanelRows);
    fill_panel(x, head, begin, end, logits);
    body(begin, end, LogitPanel{element_of(logits), end - begin, head.outputs(), logits.size(1)},
         logits);
  }
}

// differentiate(begin, end, panel, logits) replaces the logits of a panel by their gradients; those
// of x and of the head follow here.
template <class Differentiate>
void head_backward(const Tensor& x, const Linear& head, CrossEntropyGradients& gradients,
                   Linear* head_gradient, const Differentiate& differentiate) {
  const Matrix weight = weight_of(transposed(head));
  for_each_panel(
      x, head, x.dtype(), [&](int64_t begin, int64_t end, const LogitPanel& panel, Tensor& logits) {
        differentiate(begin, end, panel, logits);
        Matrix grad_logits = rows_of(logits);
        Tensor grad_x = gradients.x.slice(begin, end);
        for_each_part(panel.vocabulary, [&](int64_t first, int64_t count) {
          gemm(x.device().context(), {.beta = first == 0 ? 0.0f : 1.0f}, end - begin, head.inputs(),
               count, from_column(grad_logits, first), from_row(weight, first),
               grad_x.mutable_raw(), element_of(grad_x), grad_x.size(1));
        });
        if (head_gradient == nullptr) return;
        require(!head_gradient->input_major, "cross_entropy: expected a head [V, C]");
        grad_logits.transposed = true;
        Tensor& to = head_gradient->weight;
        for_each_part(panel.vocabulary, [&](int64_t first, int64_t count) {
          gemm(x.device().context(), {.beta = 1}, count, head.inputs(), end - begin,
               from_row(grad_logits, first), rows_of(x.slice(begin, end)),
               const_cast<void*>(from_row(rows_of(to), first).data), Element::kF32, to.size(1));
        });
      });
}

void require_no_bias(const Linear& head) {
  require(!head.bias.defined(), "cross_entropy: a head with a bias runs on the CPU only");
}

}  // namespace

// Rows of an odd length (a vocabulary's), and a bias that is not in the type of the result, are no
// good to cuBLASLt: the product goes elsewhere first.
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

void add_weight_gradient(const Tensor& x, const Tensor& grad_y, Linear& gradient) {
  const int64_t rows = x.size(0), inputs = gradient.inputs(), outputs = gradient.outputs();
  Matrix from = rows_of(x), to = rows_of(grad_y);
  Matrix& left = gradient.input_major ? from : to;
  const Matrix& right = gradient.input_major ? to : from;
  left.transposed = true;
  gemm(x.device().context(), {.beta = 1}, gradient.input_major ? inputs : outputs,
       gradient.input_major ? outputs : inputs, rows, left, right, gradient.weight.mutable_raw(),
       Element::kF32, gradient.weight.size(1));
  if (gradient.bias.defined())
    cuda_check(launch_add_column_sums(element_of(grad_y), grad_y.raw(), rows, outputs,
                                      mutable_floats(gradient.bias), stream_of(x)),
               "bias gradient");
}

void cross_entropy(const Tensor& x, const Linear& head, const Tensor& targets, Tensor& loss) {
  require_no_bias(head);
  const Tensor there = targets.to(x.device());
  const auto* ids = static_cast<const int64_t*>(there.raw());
  for_each_panel(x, head, x.dtype(),
                 [&](int64_t begin, int64_t, const LogitPanel& panel, Tensor& logits) {
                   cuda_check(launch_cross_entropy_rows(panel, logits.raw(), ids + begin,
                                                        mutable_floats(loss) + begin, stream_of(x)),
                              "cross entropy");
                 });
}

void cross_entropy_backward(const Tensor& x, const Linear& head, const Tensor& targets,
                            const Tensor& grad_loss, CrossEntropyGradients& gradients,
                            Linear* head_gradient) {
  require_no_bias(head);
  const Tensor there = targets.to(x.device()), factors = grad_loss.to(x.device());
  const auto* ids = static_cast<const int64_t*>(there.raw());
  head_backward(x, head, gradients, head_gradient,
                [&](int64_t begin, int64_t, const LogitPanel& panel, Tensor& logits) {
                  cuda_check(launch_cross_entropy_rows_backward(
                                 panel, logits.mutable_raw(), ids + begin, floats(factors) + begin,
                                 mutable_floats(gradients.loss) + begin, stream_of(x)),
                             "cross entropy");
                });
}

void imitation_backward(const Tensor& x, const Linear& head, const Tensor& teacher_x,
                        const Linear& teacher_head, const Tensor& grad_loss,
                        CrossEntropyGradients& gradients, Linear* head_gradient) {
  require_no_bias(head);
  require_no_bias(teacher_head);
  const Tensor factors = grad_loss.to(x.device());
  Tensor teacher = new_panel(x, head, x.dtype());
  head_backward(x, head, gradients, head_gradient,
                [&](int64_t begin, int64_t end, const LogitPanel& panel, Tensor& logits) {
                  fill_panel(teacher_x, teacher_head, begin, end, teacher);
                  cuda_check(
                      launch_imitation_rows_backward(
                          panel, teacher.raw(), logits.mutable_raw(), floats(factors) + begin,
                          mutable_floats(gradients.loss) + begin, stream_of(x)),
                      "divergence");
                });
}

}  // namespace dofla::cuda
