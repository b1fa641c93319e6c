// How well a model predicts the next token: cross-entropy in nats, after the protocol of
// data/batches.h.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "dofla/core/progress.h"
#include "dofla/data/batches.h"
#include "dofla/model/transformer.h"

namespace dofla {

struct SequenceLoss {
  int64_t tokens = 0;  // predicted tokens: one fewer than the sequence has
  double loss = 0;     // mean over them
};

struct NextTokenLoss {
  int64_t tokens = 0;      // predicted tokens of all sequences
  double loss = 0;         // mean over them
  double perplexity = 1;   // exp(loss)
  std::vector<SequenceLoss> sequences;
};

// −log softmax(logits)[target] of one row, its sum accumulated in double.
double cross_entropy(std::span<const float> logits, int64_t target);

// Logits are formed for a block of rows at a time and never stored whole.
SequenceLoss next_token_loss(const Transformer& model, const TokenIds& ids);  // 2 ≤ T ≤ context

// Puts the next sequence into its argument; false after the last one.
using NextSequence = std::function<bool(TokenIds& ids)>;

NextTokenLoss evaluate_next_token(const Transformer& model, const NextSequence& next,
                                  int64_t total_tokens = 0,  // for Progress; 0 if unknown
                                  const Progress& progress = {});

}  // namespace dofla
