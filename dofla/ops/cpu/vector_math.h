// Loops over float arrays, vectorised for the machine that runs them. Arrays of any length and
// alignment; exactly n elements are read and written. NaN stays NaN, except that maxima may skip
// it.
#pragma once

#include <cstdint>

namespace dofla::cpu {

float largest(const float* x, int64_t n);                         // -inf when n is 0
float largest_of_sum(const float* x, const float* y, int64_t n);  // max(x + y)
float sum(const float* x, int64_t n);
float dot(const float* x, const float* y, int64_t n);

void keep_larger(const float* x, float* largest, int64_t n);            // max, element-wise
void add_constant(float c, float* x, int64_t n);                        // x += c
void add_scaled(const float* x, float c, float* y, int64_t n);          // y += c x
void add_product(const float* x, const float* y, float* z, int64_t n);  // z += x y
void multiply(const float* x, float* y, int64_t n);                     // y *= x
void scale(float c, float* x, int64_t n);                               // x *= c

// out = exp(x + y + c), within 2 ulp; 0 below the smallest float.
void exp_of_sum(const float* x, const float* y, float c, float* out, int64_t n);
void exp_shifted(const float* x, float c, float* out, int64_t n);               // exp(x + c)
void exp_of_difference(const float* x, const float* y, float* out, int64_t n);  // exp(x - y)

// y_r += c (row r of A)·x, for A [rows, n]: a product too small for a matrix library's setup.
void add_matrix_vector(const float* a, const float* x, float c, float* y, int64_t rows, int64_t n);

}  // namespace dofla::cpu
