// The loss that language models are trained on, with its gradient.
#pragma once

#include "dofla/model/transformer.h"

namespace dofla {

// The mean cross-entropy, in nats, of every token after the first of its sequence; the gradients of
// `share` times it are added to `gradients`.
double next_token_gradient(const Transformer& model, const Tensor& ids,  // [B, T], T ≥ 2
                           bool recompute, Gradients& gradients, double share = 1);

}  // namespace dofla
