// Vector kernels over one row of floats, dispatched at run time to the widest instructions. Rows of
// any length and alignment; exactly `count` elements are read and written. exp and log are within
// 2 and 4 ulp. NaN stays NaN, except that maxima may skip it.
#pragma once

#include <cstdint>

namespace dofla::cpu {

float dot(const float* a, const float* b, int64_t count);
float row_sum(const float* x, int64_t count);
float row_max(const float* x, int64_t count);                     // -inf for an empty row
float max_of_sum(const float* x, const float* y, int64_t count);  // max(x + y)
float log_sum_exp(const float* x, int64_t count);

void add_scaled(const float* x, float scale, int64_t count, float* y);      // y += scale · x
void add_product(const float* x, const float* y, int64_t count, float* z);  // z += x · y
void add_constant(float c, int64_t count, float* x);                        // x += c
void scale_row(float scale, int64_t count, float* x);                       // x *= scale
void multiply(const float* x, int64_t count, float* y);                     // y *= x
void keep_larger(const float* x, int64_t count, float* y);                  // y = max(x, y)

// x = exp(x − shift); returns the sum.
float exp_and_sum(float shift, int64_t count, float* x);

void exp_shifted(const float* x, float c, int64_t count, float* out);                 // exp(x + c)
void exp_of_sum(const float* x, const float* y, float c, int64_t count, float* out);  // exp(x+y+c)
void exp_of_difference(const float* x, const float* y, int64_t count, float* out);  // exp(x − y)

// y_r += c · (row r of A)·x for A [rows, count]: a product too small for a matrix library's setup.
void add_matrix_vector(const float* a, const float* x, float c, int64_t rows, int64_t count,
                       float* y);
// y += Σ_r w_r · (row r of A) for A [rows, count].
void add_weighted_rows(const float* a, const float* w, int64_t rows, int64_t count, float* y);

}  // namespace dofla::cpu
