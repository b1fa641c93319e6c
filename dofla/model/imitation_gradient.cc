#include "dofla/model/imitation_gradient.h"

#include <algorithm>

#include "dofla/ops/cross_entropy.h"

namespace dofla {

double imitation_gradient(const Transformer& model, const Transformer& teacher, const Tensor& ids,
                          bool recompute, Gradients& gradients, double share) {
  const int64_t rows = ids.count();
  Tape tape = {.recompute = recompute, .ids = {}, .blocks = {}, .last = {}};
  ForwardOptions forward;
  forward.tape = &tape;
  const Tensor hidden = model.forward(ids, forward), said = teacher.forward(ids);
  Tensor weight({rows});
  std::fill_n(weight.data<float>(), rows, static_cast<float>(share / static_cast<double>(rows)));
  const CrossEntropyGradients end =
      imitation_backward(hidden.reshape({rows, model.config().width}), model.weights().head,
                         said.reshape({rows, teacher.config().width}), teacher.weights().head,
                         weight, gradients.head());
  model.backward(tape, end.x.reshape(hidden.shape()), gradients);

  const Tensor losses = end.loss.to(Device());
  double sum = 0;
  for (int64_t i = 0; i < losses.count(); ++i) sum += losses.data<float>()[i];
  return sum / static_cast<double>(rows);
}

}  // namespace dofla
