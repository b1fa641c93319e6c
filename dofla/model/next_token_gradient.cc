#include "dofla/model/next_token_gradient.h"

#include <algorithm>

#include "dofla/core/error.h"
#include "dofla/ops/cross_entropy.h"

namespace dofla {

double next_token_gradient(const Transformer& model, const Tensor& ids, bool recompute,
                           Gradients& gradients, double share) {
  require(ids.rank() == 2 && ids.size(1) >= 2, "next_token_gradient: {} tokens predict nothing",
          to_string(ids.shape()));
  const int64_t batch = ids.size(0), tokens = ids.size(1), width = model.config().width;
  Tape tape = {.recompute = recompute, .ids = {}, .blocks = {}, .last = {}};
  ForwardOptions forward;
  forward.tape = &tape;
  const Tensor hidden = model.forward(ids, forward);

  // Row t of a sequence predicts token t + 1; the last row predicts nothing and has no weight.
  Tensor targets = Tensor::zeros({batch * tokens}, DType::kI64);
  Tensor weight = Tensor::zeros({batch * tokens});
  const auto of_token = static_cast<float>(share / static_cast<double>(batch * (tokens - 1)));
  for (int64_t b = 0; b < batch; ++b) {
    std::copy_n(ids.data<int64_t>() + b * tokens + 1, tokens - 1,
                targets.data<int64_t>() + b * tokens);
    std::fill_n(weight.data<float>() + b * tokens, tokens - 1, of_token);
  }
  const CrossEntropyGradients end =
      cross_entropy_backward(hidden.reshape({batch * tokens, width}), model.weights().head, targets,
                             weight, gradients.head());
  model.backward(tape, end.x.reshape({batch, tokens, width}), gradients);

  const Tensor losses = end.loss.to(Device());
  double sum = 0;
  for (int64_t i = 0; i < losses.count(); ++i) sum += losses.data<float>()[i];
  return sum / static_cast<double>(batch * (tokens - 1));
}

}  // namespace dofla
