// Windows that ask for what stood far back: ordinary text whose end repeats passages of what came
// before, word for word. A model that still has them copies, one that has forgotten has to guess
// (docs/sensitivity.md, "Recall").
#pragma once

#include <cstdint>
#include <vector>

#include "dofla/data/batches.h"

namespace dofla {

// How many tokens at the end of a window of so many repeat others: about a fifth of it.
int64_t repeated_at_end(int64_t length);

// The window with its end replaced by passages from all parts of the rest, in an order of their
// own. A function of the ids and the seed alone.
TokenIds recall_window(TokenIds ids, uint64_t seed);

}  // namespace dofla
