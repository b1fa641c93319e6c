// Log-probabilities of tokens.
#pragma once

#include <span>

#include "dofla/serve/request.h"

namespace dofla {

// With its log-probability among all tokens, and the `top` likeliest ones. The same token has the
// same float in both places. Throws Error as likeliest_token does (ops/sampling.h).
ServedToken score_token(int64_t id, std::span<const float> logits, int64_t top);

}  // namespace dofla
