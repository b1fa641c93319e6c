// The kernels that read weights in their stored type. Products with those of a scaled tensor are in
// whole_rows.h.
#pragma once

#include <cstdint>

#include "dofla/core/dtype.h"

namespace dofla::cpu {

// to[i] = from[i] as float.
void widen(const float* from, int64_t count, float* to);
void widen(const BFloat16* from, int64_t count, float* to);
void widen(const Float16* from, int64_t count, float* to);
void widen(const int8_t* from, int64_t count, float* to);

// Up to so many rows the bits of a row do not depend on how many others there are, nor on which:
// a sequence that decodes among others gives what it gives alone. Past that, sgemm is faster.
inline constexpr int64_t kManyRows = 64;
// Up to so many, the weights pass by once in the order in which they lie in memory.
inline constexpr int64_t kFewRows = 4;

// y[r][n] += Σ_k w[n][k] x[r][k] for a weight of [outputs, inputs].
void multiply_output_major(const void* weight, DType dtype, int64_t inputs, int64_t outputs,
                           const float* x, int64_t x_stride, int64_t rows, float* y,
                           int64_t y_stride);

// The inputs of a weight of [inputs, outputs] are summed in so many shares, one after another.
inline constexpr int64_t kInputShares = 8;

// y[r][n] += Σ_k w[k][n] x[r][k] for one share of a weight of [inputs, outputs].
void multiply_input_major(const void* weight, DType dtype, int64_t inputs, int64_t outputs,
                          const float* x, int64_t x_stride, int64_t rows, float* y,
                          int64_t y_stride);

// The same for all shares, up to kManyRows rows and `columns` of the outputs, at most
// kColumnsAtOnce; rows of the weight are `outputs` apart.
inline constexpr int64_t kColumnsAtOnce = 128;
// Of a small layer fewer: multiples of 32, which fill the vectors of any machine, so that every
// core gets as much as the others.
inline int64_t fair_columns(int64_t outputs, int64_t cores) {
  const int64_t fair = (outputs + 32 * cores - 1) / (32 * cores) * 32;
  return fair < kColumnsAtOnce ? fair : kColumnsAtOnce;
}
void multiply_input_major_columns(const void* weight, DType dtype, int64_t inputs, int64_t outputs,
                                  int64_t columns, const float* x, int64_t x_stride, int64_t rows,
                                  float* y, int64_t y_stride);

}  // namespace dofla::cpu
