// What the features of a layer learn from: its queries, keys and values, and a layerwise loss. Made
// once for any number of features that have the same exact keys beside them.
#pragma once

#include <functional>

#include "dofla/distill/loss.h"
#include "dofla/distill/pairs_to_learn.h"
#include "dofla/features/exact_key_set.h"
#include "dofla/model/transformer.h"
#include "dofla/ops/attention_tape.h"

namespace dofla {

class LayerTarget {
 public:
  LayerTarget(const Tensor& q,  // [B, H, T, D]
              const Tensor& k,  // [B, Hkv, T, D]
              const Tensor& v,  // [B, Hkv, T, D]
              const ExactKeys& exact, const LayerwiseLoss& loss);

  FeatureLoss loss(const Features& features) const;

  // Σ |out − softmax attention's|² of every query head, of a target with the output loss.
  std::vector<double> output_errors(const Features& features) const;

 private:
  AttentionTape attend(const Features& features) const;
  FeatureLoss output_loss(const Features& features) const;

  LayerwiseLoss loss_;
  PairsToLearn pairs_;  // of losses over pairs

  // of the output's error
  Tensor q_, k_, v_;
  ExactKeys exact_;
  Tensor wanted_;       // [B, T, H, D]: what softmax attention gives
  AttentionTape held_;  // of the exact keys alone
};

// Runs the teacher over a batch and shows the target of every layer that is `wanted`, one after the
// other, for students that keep such exact keys.
void each_target(const Transformer& teacher, const Tensor& ids,  // [B, T], I64
                 const ExactKeySet& exact, const LayerwiseLoss& loss,
                 const std::function<bool(int64_t layer)>& wanted,
                 const std::function<void(int64_t layer, const LayerTarget& target)>& see);

}  // namespace dofla
