// What sampling a token needs of a row of logits.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "dofla/core/tensor.h"

namespace dofla {

// The first of the largest logits. Throws Error if one is NaN or +∞, or none is finite.
size_t likeliest_token(std::span<const float> logits);

// log Σ exp(logits[i]) of logits that likeliest_token takes.
double log_sum_exp(std::span<const float> logits);

// weights[i] = exp((logits[i] − top) / temperature), where `top` is the largest logit, finite, and
// the temperature is more than 0. Returns their sum.
double sampling_weights(std::span<const float> logits, float top, double temperature,
                        std::span<float> weights);

// How a token is drawn (SamplerOptions, generate/sampler.h), and with which random number.
struct TokenDraw {
  double temperature = 0;
  int64_t top_k = 0;
  double top_p = 1;
  double uniform = 0;  // in [0, 1)
};

// On a GPU, a token from every row of logits, in the order in which Sampler passes them: up to
// rounding the one that it draws with the same random number. −1 where a logit is NaN or +∞, or
// none is finite. Rows beyond the draws are left out.
std::vector<int64_t> draw_tokens(const Tensor& logits,  // [R or more, V], F32, on a GPU
                                 const std::vector<TokenDraw>& draws);  // R -> R

// What a GPU implements; on a CPU a Sampler looks at one row at a time.
struct SamplingBackend {
  void (*draw_tokens)(const Tensor& logits,  // [R, V]
                      const Tensor& draws,   // [R, 4], F64: the fields of TokenDraw
                      Tensor& ids);          // [R], I64
};
namespace cuda {
extern const SamplingBackend kSampling;
}

}  // namespace dofla
