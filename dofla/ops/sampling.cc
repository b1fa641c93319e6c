#include "dofla/ops/sampling.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "dofla/core/error.h"
#include "dofla/ops/cpu/vector_rows.h"

namespace dofla {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

void refuse_broken(std::span<const float> logits) {
  for (size_t i = 0; i < logits.size(); ++i)
    if (!(logits[i] < kInfinity))
      fail("the model's logit of token {} is {}: its weights or its input are broken", i,
           logits[i]);
}

}  // namespace

size_t likeliest_token(std::span<const float> logits) {
  const auto count = static_cast<int64_t>(logits.size());
  const float top = cpu::row_max(logits.data(), count);
  // A maximum may pass over NaN, a sum does not.
  if (top == kInfinity || std::isnan(cpu::row_sum(logits.data(), count))) refuse_broken(logits);
  if (top == -kInfinity) fail("the model gives every token probability 0");
  return static_cast<size_t>(std::ranges::find(logits, top) - logits.begin());
}

double log_sum_exp(std::span<const float> logits) {
  return cpu::log_sum_exp(logits.data(), static_cast<int64_t>(logits.size()));
}

double sampling_weights(std::span<const float> logits, float top, double temperature,
                        std::span<float> weights) {
  require(weights.size() == logits.size(), "{} weights for {} logits", weights.size(),
          logits.size());
  // In double, where the difference of two floats is finite, and so is its product but for the
  // smallest temperatures.
  const double factor = 1 / std::max(temperature, 1e-300);
  for (size_t i = 0; i < logits.size(); ++i)
    weights[i] = static_cast<float>((double{logits[i]} - top) * factor);
  return cpu::exp_and_sum(0, static_cast<int64_t>(weights.size()), weights.data());
}

std::vector<int64_t> draw_tokens(const Tensor& logits, const std::vector<TokenDraw>& draws) {
  const auto rows = static_cast<int64_t>(draws.size());
  require(logits.rank() == 2 && rows <= logits.size(0) && logits.device().is_cuda(),
          "draw_tokens: {} draws from logits {} on a GPU", rows, to_string(logits.shape()));
  if (rows == 0) return {};
  Tensor how({rows, 4}, DType::kF64);
  double* next = how.data<double>();
  for (const TokenDraw& draw : draws) {
    *next++ = draw.temperature;
    *next++ = static_cast<double>(draw.top_k);
    *next++ = draw.top_p;
    *next++ = draw.uniform;
  }
  Tensor ids({rows}, DType::kI64, logits.device());
  cuda::kSampling.draw_tokens(logits.slice(0, rows), how.to(logits.device()), ids);
  const Tensor here = ids.to(Device());
  return {here.data<int64_t>(), here.data<int64_t>() + rows};
}

}  // namespace dofla
