// The kernels that read weights in their stored type. T is float, Float16 or BFloat16.
#pragma once

#include <cstdint>

#include "dofla/core/dtype.h"

namespace dofla::cpu {

// to[i] = from[i] as float.
void widen(const float* from, int64_t count, float* to);
void widen(const BFloat16* from, int64_t count, float* to);
void widen(const Float16* from, int64_t count, float* to);

// Most rows of x that multiply_rows takes at a time: past that, sgemm is faster.
inline constexpr int64_t kFewRows = 4;

// y[r][n] += Σ_k w[n][k] x[r][k] for a weight of [outputs, inputs].
void multiply_output_major(const void* weight, DType dtype, int64_t inputs, int64_t outputs,
                           const float* x, int64_t x_stride, int64_t rows, float* y,
                           int64_t y_stride);

// y[r][n] += Σ_k w[k][n] x[r][k] for a weight of [inputs, outputs].
void multiply_input_major(const void* weight, DType dtype, int64_t inputs, int64_t outputs,
                          const float* x, int64_t x_stride, int64_t rows, float* y,
                          int64_t y_stride);

}  // namespace dofla::cpu
