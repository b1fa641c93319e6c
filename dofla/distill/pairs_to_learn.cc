#include "dofla/distill/pairs_to_learn.h"

#include "dofla/ops/hybrid_attention.h"

namespace dofla {

PairsToLearn pairs_to_learn(const Tensor& q, const Tensor& k, const Tensor& v,
                            const ExactKeys& exact) {
  if (exact.empty()) return {q, k};
  const LeftPairs left = left_pairs(q, k, v, exact);
  return {left.q, left.k, left.rest, exact.block};
}

FeatureLoss feature_loss(const PairsToLearn& pairs, const Features& features,
                         FeatureLossOptions options) {
  options.block = pairs.block;
  return feature_loss(pairs.q, pairs.k, features, options, pairs.rest);
}

}  // namespace dofla
