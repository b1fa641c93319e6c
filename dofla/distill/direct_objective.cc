#include "dofla/distill/direct_objective.h"

#include <algorithm>
#include <optional>

#include "dofla/linear/linear_model.h"
#include "dofla/model/imitation_gradient.h"
#include "dofla/model/next_token_gradient.h"

namespace dofla {

Objective direct_objective(const Checkpoint& checkpoint, const Transformer& teacher,
                           const DirectLoss& loss) {
  Objective objective;
  objective.per_layer = false;
  // The student is made with the first features it is given and shares their memory from then on:
  // each step sees what the optimizer made of them.
  auto student = std::make_shared<std::optional<Transformer>>();
  objective.run = [checkpoint, &teacher, loss, student](
                      const Tensor& ids, const FeatureSet& features, const Objective::Take& take) {
    const Device& device = teacher.device();
    if (!*student) student->emplace(make_linear_model(checkpoint, features, device));
    Gradients gradients = new_gradients(**student, {.features = true});
    const double value =
        loss.imitate ? imitation_gradient(**student, teacher, ids, loss.recompute, gradients)
                     : next_token_gradient(**student, ids, loss.recompute, gradients);
    for (size_t i = 0; i < features.layers.size(); ++i) {
      if (features.layers[i].empty()) continue;
      Tensor per_head({features.layers[i].query_heads()}, DType::kF64);
      std::fill_n(per_head.data<double>(), per_head.count(), value);
      take(static_cast<int64_t>(i), {per_head.to(device), gradients.features[i]});
    }
  };
  return objective;
}

}  // namespace dofla
