// How fast a model reads and writes.
#pragma once

#include <limits>
#include <vector>

#include "dofla/data/batches.h"
#include "dofla/model/transformer.h"

namespace dofla {

// Seconds a token; the fastest of several rounds counts.
struct TokenTime {
  double prefill = std::numeric_limits<double>::infinity();
  double decode = std::numeric_limits<double>::infinity();

  void keep_faster(const TokenTime& other);
};

// One round over a sequence of `length` tokens, made of the text, over and over where it is short:
// reads all but the last few at once and generates as many as were left out; of a short sequence
// that is half.
TokenTime time_inference(const Transformer& model, const WindowSet& text, int64_t length);

}  // namespace dofla
