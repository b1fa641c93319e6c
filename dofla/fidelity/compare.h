// A teacher and its students read the same text, token by token.
#pragma once

#include <vector>

#include "dofla/evaluate/next_token.h"
#include "dofla/ops/divergence.h"

namespace dofla {

// What a student made of a text beside its teacher.
struct Compared {
  // Of every window what both say of its tokens but the first, which nobody predicts.
  std::vector<std::vector<TokenStatistics>> windows;
  // Of every layer and head of the student: what its attention gives against what softmax attention
  // gives for the same queries, keys and values. So this is what a layer gets wrong by itself; a
  // layer with softmax attention has no error.
  std::vector<std::vector<OutputError>> heads;
};

// One a student, which all read the text in one pass. Logits are never stored whole. Throws Error
// unless all have the teacher's vocabulary; NotFinite if a loss is not finite. All ranks of a group
// have the result: what is said of tokens has the same bits with any number of them.
std::vector<Compared> compare(const Transformer& teacher,
                              const std::vector<const Transformer*>& students,
                              const NextSequence& next, int64_t total_tokens = 0,
                              const Progress& progress = {}, const Group& group = {});

// |student − teacher| / |teacher|; 0 where there is no error.
double relative(const OutputError& error);
// Of a whole layer.
std::vector<double> layer_errors(const Compared& compared);

}  // namespace dofla
