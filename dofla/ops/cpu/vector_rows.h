// Vector kernels over one row of floats, dispatched at run time to the widest instructions.
#pragma once

#include <cstdint>

namespace dofla::cpu {

float dot(const float* a, const float* b, int64_t count);
void add_scaled(const float* x, float scale, int64_t count, float* y);  // y += scale · x
void scale_row(float scale, int64_t count, float* x);                   // x *= scale
float row_max(const float* x, int64_t count);
float log_sum_exp(const float* x, int64_t count);

// x = exp(x − shift); returns the sum.
float exp_and_sum(float shift, int64_t count, float* x);

}  // namespace dofla::cpu
