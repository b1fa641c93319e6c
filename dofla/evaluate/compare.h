// How much of the teacher is in a student: losses, divergence and the error of every layer's
// attention, on the same text.
#pragma once

#include <vector>

#include "dofla/evaluate/next_token.h"

namespace dofla {

struct Comparison {
  int64_t tokens = 0;       // predicted
  double teacher_loss = 0;  // mean next-token cross-entropy, in nats
  double student_loss = 0;
  double kl = 0;              // mean KL(teacher ‖ student), in nats
  double top1_agreement = 0;  // share of predictions with the same most likely token
  // |student − teacher| / |teacher| of each layer's attention output, both given the teacher's own
  // queries, keys and values: what the layer gets wrong by itself.
  std::vector<double> attention_error;
};

// Throws Error unless both have the same vocabulary and the same heads in every layer; NotFinite if
// a loss of one of them is not finite.
Comparison compare(const Transformer& teacher, const Transformer& student, const NextSequence& next,
                   int64_t total_tokens = 0, const Progress& progress = {});

}  // namespace dofla
