// What sampling a token needs of a row of logits.
#pragma once

#include <cstddef>
#include <span>

namespace dofla {

// The first of the largest logits. Throws Error if one is NaN or +∞, or none is finite.
size_t likeliest_token(std::span<const float> logits);

// log Σ exp(logits[i]) of logits that likeliest_token takes.
double log_sum_exp(std::span<const float> logits);

// weights[i] = exp((logits[i] − top) / temperature), where `top` is the largest logit, finite, and
// the temperature is more than 0. Returns their sum.
double sampling_weights(std::span<const float> logits, float top, double temperature,
                        std::span<float> weights);

}  // namespace dofla
