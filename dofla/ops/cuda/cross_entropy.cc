#include "dofla/ops/cross_entropy.h"

#include "dofla/ops/cuda/logit_panels.h"

namespace dofla::cuda {
namespace {

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

}  // namespace

const CrossEntropyBackend kCrossEntropy = {.cross_entropy = cross_entropy,
                                           .cross_entropy_backward = cross_entropy_backward,
                                           .imitation_backward = imitation_backward};

}  // namespace dofla::cuda
