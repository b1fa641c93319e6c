// The pairs of queries and keys that the features of a layer learn from: all of them, or those that
// a cache of exact keys leaves to features.
#pragma once

#include "dofla/ops/exact_keys.h"
#include "dofla/ops/feature_loss.h"

namespace dofla {

struct PairsToLearn {
  Tensor q;           // [B, H, T, D]
  Tensor k;           // [B, Hkv, T, D]
  Tensor rest = {};   // [B, H, T] F32: of exact keys, as feature_loss takes it, kPaddedRest in
                      // rows that a head does not have; undefined: none
  int64_t block = 1;  // query i sees the keys j / block ≤ i / block
};

PairsToLearn pairs_to_learn(const Tensor& q,  // [B, H, T, D]
                            const Tensor& k,  // [B, Hkv, T, D]
                            const Tensor& v,  // [B, Hkv, T, D]
                            const ExactKeys& exact);

FeatureLoss feature_loss(const PairsToLearn& pairs, const Features& features,
                         FeatureLossOptions options);

}  // namespace dofla
