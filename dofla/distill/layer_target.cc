#include "dofla/distill/layer_target.h"

#include "dofla/ops/activation.h"
#include "dofla/ops/divergence.h"
#include "dofla/ops/hybrid_attention.h"
#include "dofla/ops/softmax_attention.h"

namespace dofla {

LayerTarget::LayerTarget(const Tensor& q, const Tensor& k, const Tensor& v, const ExactKeys& exact,
                         const LayerwiseLoss& loss)
    : loss_(loss), exact_(exact) {
  if (std::holds_alternative<FeatureLossOptions>(loss)) {
    pairs_ = pairs_to_learn(q, k, v, exact);
    return;
  }
  q_ = q;
  k_ = k;
  v_ = v;
  wanted_ = softmax_attention(q, k, v, k.size(2));
  if (!exact.empty()) hybrid_attention(q, k, v, {}, exact, nullptr, 0, &held_);
}

FeatureLoss LayerTarget::loss(const Features& features) const {
  const auto* of_pairs = std::get_if<FeatureLossOptions>(&loss_);
  return of_pairs != nullptr ? feature_loss(pairs_, features, *of_pairs) : output_loss(features);
}

AttentionTape LayerTarget::attend(const Features& features) const {
  if (!exact_.empty()) return with_features(q_, k_, v_, features, exact_, held_);
  AttentionTape tape;
  linear_attention(q_, k_, v_, features, nullptr, kLinearAttentionChunk, &tape);
  return tape;
}

std::vector<double> LayerTarget::output_errors(const Features& features) const {
  std::vector<double> errors;
  for (const OutputError& head : head_errors(wanted_, attend(features).out))
    errors.push_back(head.error);
  return errors;
}

// Σ |out − wanted|² / (2 B T), whose gradient by the output is (out − wanted)/(B T).
FeatureLoss LayerTarget::output_loss(const Features& features) const {
  const double rows = static_cast<double>(q_.size(0) * q_.size(2));
  const AttentionTape tape = attend(features);
  const std::vector<OutputError> errors = head_errors(wanted_, tape.out);
  Tensor per_head({std::ssize(errors)}, DType::kF64), grad_out = tape.out.clone();
  for (size_t h = 0; h < errors.size(); ++h)
    per_head.data<double>()[h] = errors[h].error / (2 * rows);
  subtract(static_cast<float>(1 / rows), wanted_, grad_out);
  if (!exact_.empty())
    return {per_head.to(q_.device()),
            hybrid_feature_gradients(q_, k_, v_, features, exact_, grad_out, tape)};
  return {per_head.to(q_.device()),
          linear_attention_backward(q_, k_, v_, features, grad_out, kLinearAttentionChunk, tape)
              .features};
}

void each_target(const Transformer& teacher, const Tensor& ids, const ExactKeySet& exact,
                 const LayerwiseLoss& loss, const std::function<bool(int64_t layer)>& wanted,
                 const std::function<void(int64_t layer, const LayerTarget& target)>& see) {
  ForwardOptions forward;
  forward.heads_only = true;
  forward.observer = [&](int64_t layer, const Tensor& q, const Tensor& k, const Tensor& v) {
    if (wanted(layer))
      see(layer, LayerTarget(q, k, v, exact_keys_of(exact, static_cast<size_t>(layer)), loss));
  };
  teacher.forward(ids, forward);
}

}  // namespace dofla
