#include "dofla/distill/shared_batch.h"

#include "dofla/ops/activation.h"

namespace dofla {
namespace {

// One tensor in the place of several, which become parts of it.
Tensor joined(const std::vector<Tensor*>& parts) {
  constexpr int64_t kApart = 64;  // kernels that take packs want parts to begin at one
  std::vector<int64_t> begins;
  int64_t end = 0;
  for (const Tensor* part : parts) {
    begins.push_back(end);
    end += (part->count() + kApart - 1) / kApart * kApart;
  }
  Tensor all = Tensor::zeros({end}, parts.front()->dtype(), parts.front()->device());
  for (size_t i = 0; i < parts.size(); ++i) {
    Tensor part = all.slice(begins[i], begins[i] + parts[i]->count()).reshape(parts[i]->shape());
    part.assign(*parts[i]);
    *parts[i] = part;
  }
  return all;
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
  if (group_.alone() || waiting_.empty()) return;
  std::vector<Tensor*> losses, gradients;
  for (Waiting& one : waiting_) {
    losses.push_back(&one.loss.per_head);
    for (const auto& [name, part] : feature_parts(one.loss.grad))
      if (part->defined()) gradients.push_back(part);
  }
  // First, so that a GPU is at work on it while losses, which are summed in double, come here.
  Tensor gradient = joined(gradients), loss = joined(losses);
  if (weight_ != 1) scale(static_cast<float>(weight_), gradient);
  group_.sum(std::span(&gradient, 1));
  Tensor here = loss.to(Device());
  const std::span all(here.data<double>(), static_cast<size_t>(here.count()));
  for (double& x : all) x *= weight_;
  group_.sum(all);
  if (loss.device().is_cuda()) loss.assign(here);
  for (const auto& [layer, own, take] : waiting_) (*take)(layer, own);
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
