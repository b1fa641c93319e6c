// The tokens that a model holds for the likeliest.
#pragma once

#include "dofla/data/batches.h"
#include "dofla/model/transformer.h"

namespace dofla {

// The likeliest next token of every row, the first of equal ones. `ids` is what the model read to
// get there. Throws NotFinite (model/finite.h) if a logit is not finite.
TokenIds likeliest_tokens(const Transformer& model,
                          const Tensor& hidden,  // [N, C], as forward() gives them
                          const Tensor& ids);    // [B, T], I64

}  // namespace dofla
