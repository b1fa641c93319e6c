// How well a model predicts the next token: cross-entropy in nats, after the protocol of
// data/batches.h.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "dofla/core/fingerprint.h"
#include "dofla/core/progress.h"
#include "dofla/data/batches.h"
#include "dofla/distributed/group.h"
#include "dofla/model/transformer.h"

namespace dofla {

struct SequenceLoss {
  int64_t tokens = 0;  // predicted tokens: one fewer than the sequence has
  double loss = 0;     // mean over them
};

struct NextTokenLoss {
  int64_t tokens = 0;     // predicted tokens of all sequences
  double loss = 0;        // mean over them
  double perplexity = 1;  // exp(loss)
  std::vector<SequenceLoss> sequences;
};

// Logits are never stored whole: see ops/cross_entropy.h.
SequenceLoss next_token_loss(const Transformer& model, const TokenIds& ids);  // 2 ≤ T ≤ context

// Throws NotFinite (model/finite.h), naming the first layer at fault, if that loss is not finite.
void require_finite_loss(const Transformer& model, const TokenIds& ids);

// Puts the next sequence into its argument; false after the last one.
using NextSequence = std::function<bool(TokenIds& ids)>;

// One after the other; sequences must outlive the function, windows need not.
NextSequence each_of(const std::vector<TokenIds>& sequences);
NextSequence each_of(const WindowSet& windows);

// The sequences of a text that ranks read by turns, sequence i by rank i mod size. Each looks at
// all of them, so that in the end it shows if they were not the same. Alone it is all of them.
class Turns {
 public:
  Turns(const Group& group, const NextSequence& next) : group_(group), next_(next) {}

  bool next(TokenIds& ids);   // of this rank; false after the last one
  void require_same() const;  // all ranks: throws Error if the texts differ

 private:
  const Group& group_;
  const NextSequence& next_;
  int64_t seen_ = 0;
  Fingerprint text_;
};

// Throws NotFinite, naming the first layer at fault, if a loss is not finite. All ranks of a group
// have the result, whose bits do not depend on their number.
NextTokenLoss evaluate_next_token(const Transformer& model, const NextSequence& next,
                                  int64_t total_tokens = 0,  // for Progress; 0 if unknown
                                  const Progress& progress = {}, const Group& group = {});

}  // namespace dofla
