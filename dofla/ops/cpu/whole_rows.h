// Products of 8-bit weights with rows of activations that were rounded to whole numbers of 16 bits.
// Extending a weight to 16 bits and multiplying whole numbers by pairs takes half the instructions
// of making floats of the weights, and more of them fit a vector. Sums of whole numbers are exact,
// so that a row has the same bits in any company. The factors of weights and rows are the caller's
// affair.
#pragma once

#include <cstdint>

namespace dofla::cpu {

// x ≈ step · to: the largest magnitude becomes 32767. Returns the step, NaN unless all of x is
// finite.
float round_row(const float* x, int64_t count, int16_t* to);

// y[r][n] += Σ_k w[n][k] x[r][k] for a weight of [outputs, inputs].
void multiply_whole_output_major(const int8_t* weight, int64_t inputs, int64_t outputs,
                                 const int16_t* x, int64_t x_stride, int64_t rows, float* y,
                                 int64_t y_stride);

// The inputs of a weight of [inputs, outputs] are summed by shares of an even number of them, so
// few that 32 bits hold their sum: 2⁹ · 2⁷ · (2¹⁵ − 1) < 2³¹. A share's sum is exact; those of
// several are added as floats.
inline constexpr int64_t kMostExact = 512;
inline int64_t whole_share(int64_t inputs, int64_t least_shares) {
  const int64_t even = (inputs + 2 * least_shares - 1) / (2 * least_shares) * 2;
  return even < kMostExact ? even : kMostExact;
}

// y[r][n] = Σ_k w[k][n] x[r][k], or with `add` +=, for one share of the inputs and `columns` of the
// outputs; rows of the weight are `stride` apart, and those of `sums`, a workspace, hold `columns`.
void multiply_whole_input_major(const int8_t* weight, int64_t stride, int64_t inputs,
                                int64_t columns, const int16_t* x, int64_t x_stride, int64_t rows,
                                int32_t* sums, bool add, float* y, int64_t y_stride);

}  // namespace dofla::cpu
