#include "dofla/distill/shared_batch.h"

#include <algorithm>

namespace dofla {
namespace {

void scale(Tensor& values, double factor) {
  float* x = values.data<float>();
  for (int64_t i = 0; i < values.count(); ++i) x[i] *= static_cast<float>(factor);
}

}  // namespace

SharedBatch::SharedBatch(const Group& group, const Tensor& ids) : group_(group) {
  const Share own = group.share(ids.size(0));
  if (own.count() > 0) rows_ = ids.slice(own.begin, own.end);
  weight_ = static_cast<double>(own.count()) / static_cast<double>(ids.size(0));
}

void SharedBatch::add(int64_t layer, const FeatureLoss& loss, const Objective::Take& take) {
  if (group_.alone()) return take(layer, loss);
  waiting_.push_back({layer, loss, &take});
}

void SharedBatch::add_nothing(int64_t layer, const Features& features,
                              const Objective::Take& take) {
  add(layer,
      {Tensor::zeros({features.query_heads()}, DType::kF64, features.z.device()),
       zero_gradients(features)},
      take);
}

// One exchange for all layers: what is to be sent is small beside the work of a batch, and so is
// the memory beside that of the teacher's activations.
void SharedBatch::finish() {
  if (group_.alone()) return;
  std::vector<double> losses;
  std::vector<Tensor> gradients;
  for (auto& [layer, loss, take] : waiting_) {
    const Tensor per_head = loss.per_head.to(Device());
    for (int64_t i = 0; i < per_head.count(); ++i)
      losses.push_back(weight_ * per_head.data<double>()[i]);
    for (const auto& [name, part] : feature_parts(loss.grad)) {
      if (!part->defined()) continue;
      *part = part->to(Device());
      scale(*part, weight_);
      gradients.push_back(*part);
    }
  }
  group_.sum(losses);
  group_.sum(gradients);
  const double* sum = losses.data();
  for (auto& [layer, loss, take] : waiting_) {
    const Device device = loss.per_head.device();
    Tensor per_head(loss.per_head.shape(), DType::kF64);
    std::copy_n(sum, per_head.count(), per_head.data<double>());
    sum += per_head.count();
    loss.per_head = per_head.to(device);
    for (const auto& [name, part] : feature_parts(loss.grad))
      if (part->defined()) *part = part->to(device);
    (*take)(layer, loss);
  }
  waiting_.clear();
}

Objective shared_by(const Group& group, Objective objective) {
  if (group.alone()) return objective;
  objective.run = [group, of_rows = std::move(objective.run)](
                      const Tensor& ids, const FeatureSet& features, const Objective::Take& take) {
    SharedBatch batch(group, ids);
    if (batch.rows().defined()) {
      of_rows(batch.rows(), features,
              [&](int64_t layer, const FeatureLoss& loss) { batch.add(layer, loss, take); });
    } else {
      for (size_t i = 0; i < features.layers.size(); ++i)
        if (!features.layers[i].empty())
          batch.add_nothing(static_cast<int64_t>(i), features.layers[i], take);
    }
    batch.finish();
  };
  return objective;
}

}  // namespace dofla
