// A text and what a model remembers of it: enough to go on from there.
#pragma once

#include "dofla/data/batches.h"
#include "dofla/model/transformer.h"

namespace dofla {

struct Snapshot {
  TokenIds tokens;                      // the whole text
  DecodeState state = DecodeState({});  // of one sequence, which has read the first `read()` tokens
  Tensor hidden = {};  // [1, C], what forward() returned for the last token read; or undefined

  int64_t read() const { return state.longest(); }
  int64_t bytes() const;  // all memory that it takes
};

// One sequence of a state on its own, after `tokens` of its tokens (fewer than it has seen only
// where all layers have caches), in no more memory than these need.
DecodeState copy_of(const Transformer& model, const DecodeState& state, int64_t index,
                    int64_t tokens);

bool all_layers_grow(const Transformer& model);

}  // namespace dofla
