#include "dofla/ops/cpu/vector_rows.h"

#include <cmath>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "dofla/ops/cpu/vector_rows.cc"
#include <hwy/foreach_target.h>
// After foreach_target.h: it is compiled for the target chosen there.
#include "dofla/ops/cpu/lane_sums-inl.h"
#include "dofla/ops/cpu/vector_math-inl.h"

HWY_BEFORE_NAMESPACE();
namespace dofla::cpu::HWY_NAMESPACE {

HWY_INLINE Vector add_dot(Vector sum, Vector a, Vector b) {
  return hn::MulAdd(a, b, sum);
}

float Dot(const float* a, const float* b, int64_t count) {
  Vector sum0 = hn::Zero(Floats()), sum1 = sum0;  // two sums hide the latency of the additions
  int64_t i = 0;
  for (; i + 2 * lanes() <= count; i += 2 * lanes()) {
    sum0 = add_dot(sum0, load(a + i), load(b + i));
    sum1 = add_dot(sum1, load(a + i + lanes()), load(b + i + lanes()));
  }
  return lanes_sum(fold(count - i, hn::Add(sum0, sum1), 0.0f, add_dot, a + i, b + i));
}

float RowSum(const float* x, int64_t count) {
  const auto step = [](Vector sum, Vector a) { return hn::Add(sum, a); };
  return lanes_sum(fold(count, hn::Zero(Floats()), 0.0f, step, x));
}

float RowMax(const float* x, int64_t count) {
  return largest(x, count);
}

float MaxOfSum(const float* x, const float* y, int64_t count) {
  return largest_sum(x, y, count);
}

float LogSumExp(const float* x, int64_t count) {
  const float shift = largest(x, count);
  const Vector offset = hn::Set(Floats(), shift);
  const auto step = [&](Vector sum, Vector a) { return hn::Add(sum, exp(hn::Sub(a, offset))); };
  return shift + std::log(lanes_sum(fold(count, hn::Zero(Floats()), kLowest, step, x)));
}

void AddScaled(const float* x, float scale, int64_t count, float* y) {
  const Vector factor = hn::Set(Floats(), scale);
  map(
      count, y, [&](Vector a, Vector b) { return hn::MulAdd(a, factor, b); }, x, fixed(y));
}

void AddProduct(const float* x, const float* y, int64_t count, float* z) {
  map(
      count, z, [](Vector a, Vector b, Vector c) { return hn::MulAdd(a, b, c); }, x, y, fixed(z));
}

void AddConstant(float c, int64_t count, float* x) {
  const Vector shift = hn::Set(Floats(), c);
  map(
      count, x, [&](Vector a) { return hn::Add(a, shift); }, fixed(x));
}

void ScaleRow(float scale, int64_t count, float* x) {
  const Vector factor = hn::Set(Floats(), scale);
  map(
      count, x, [&](Vector a) { return hn::Mul(a, factor); }, fixed(x));
}

void Multiply(const float* x, int64_t count, float* y) {
  map(
      count, y, [](Vector a, Vector b) { return hn::Mul(a, b); }, x, fixed(y));
}

void KeepLarger(const float* x, int64_t count, float* y) {
  map(
      count, y, [](Vector a, Vector b) { return hn::Max(a, b); }, x, fixed(y));
}

float ExpAndSum(float shift, int64_t count, float* x) {
  return exp_in_place(shift, count, x);
}

void ExpShifted(const float* x, float c, int64_t count, float* out) {
  const Vector shift = hn::Set(Floats(), c);
  map(
      count, out, [&](Vector a) { return exp(hn::Add(a, shift)); }, x);
}

void ExpOfSum(const float* x, const float* y, float c, int64_t count, float* out) {
  const Vector shift = hn::Set(Floats(), c);
  map(
      count, out, [&](Vector a, Vector b) { return exp(hn::Add(hn::Add(a, b), shift)); }, x, y);
}

void ExpOfDifference(const float* x, const float* y, int64_t count, float* out) {
  map(
      count, out, [](Vector a, Vector b) { return exp(hn::Sub(a, b)); }, x, y);
}

void AddMatrixVector(const float* a, const float* x, float c, int64_t rows, int64_t count,
                     float* y) {
  const Vector zero = hn::Zero(Floats());
  int64_t r = 0;
#if HWY_ARCH_X86 && HWY_TARGET <= HWY_AVX3
  // Sixteen rows, where they fill the vectors: summing their lanes takes little more than of one.
  for (; count % lanes() == 0 && r + 16 <= rows; r += 16) {
    Vector sums[4][4];
    for (int64_t j = 0; j < 16; ++j) sums[j % 4][j / 4] = zero;
    for (int64_t i = 0; i < count; i += lanes()) {
      const Vector v = load(x + i);
      for (int64_t j = 0; j < 16; ++j)
        sums[j % 4][j / 4] = add_dot(sums[j % 4][j / 4], v, load(a + (r + j) * count + i));
    }
    float total[16];
    sum_lanes_of_sixteen(sums, total);
    for (int64_t j = 0; j < 16; ++j) y[r + j] += c * total[j];
  }
#endif
  for (; r + 4 <= rows; r += 4) {  // four rows share the loads of x
    const float* row = a + r * count;
    Vector sums[4] = {zero, zero, zero, zero};
    int64_t i = 0;
    for (; i + lanes() <= count; i += lanes()) {
      const Vector v = load(x + i);
      for (int64_t j = 0; j < 4; ++j) sums[j] = add_dot(sums[j], v, load(row + j * count + i));
    }
    for (int64_t j = 0; j < 4; ++j)
      y[r + j] +=
          c * lanes_sum(fold(count - i, sums[j], 0.0f, add_dot, x + i, row + j * count + i));
  }
  for (; r < rows; ++r) y[r] += c * lanes_sum(fold(count, zero, 0.0f, add_dot, x, a + r * count));
}

// For kVectors vectors of the width at once: their sums stay in registers while the rows pass by.
template <int kVectors>
HWY_INLINE void add_columns(const float* a, const float* w, int64_t rows, int64_t stride,
                            float* y) {
  Vector sums[kVectors];
  for (int i = 0; i < kVectors; ++i) sums[i] = load(y + i * lanes());
  for (int64_t r = 0; r < rows; ++r, a += stride) {
    const Vector weight = hn::Set(Floats(), w[r]);
    for (int i = 0; i < kVectors; ++i) sums[i] = hn::MulAdd(weight, load(a + i * lanes()), sums[i]);
  }
  for (int i = 0; i < kVectors; ++i) store(sums[i], y + i * lanes());
}

void AddWeightedRows(const float* a, const float* w, int64_t rows, int64_t count, float* y) {
  int64_t i = 0;
  for (; i + 4 * lanes() <= count; i += 4 * lanes()) add_columns<4>(a + i, w, rows, count, y + i);
  for (; i + lanes() <= count; i += lanes()) add_columns<1>(a + i, w, rows, count, y + i);
  for (; i < count; ++i)
    for (int64_t r = 0; r < rows; ++r) y[i] += w[r] * a[r * count + i];
}

}  // namespace dofla::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace dofla::cpu {

HWY_EXPORT(Dot);
HWY_EXPORT(RowSum);
HWY_EXPORT(RowMax);
HWY_EXPORT(MaxOfSum);
HWY_EXPORT(LogSumExp);
HWY_EXPORT(AddScaled);
HWY_EXPORT(AddProduct);
HWY_EXPORT(AddConstant);
HWY_EXPORT(ScaleRow);
HWY_EXPORT(Multiply);
HWY_EXPORT(KeepLarger);
HWY_EXPORT(ExpAndSum);
HWY_EXPORT(ExpShifted);
HWY_EXPORT(ExpOfSum);
HWY_EXPORT(ExpOfDifference);
HWY_EXPORT(AddMatrixVector);
HWY_EXPORT(AddWeightedRows);

float dot(const float* a, const float* b, int64_t count) {
  return HWY_DYNAMIC_DISPATCH(Dot)(a, b, count);
}
float row_sum(const float* x, int64_t count) {
  return HWY_DYNAMIC_DISPATCH(RowSum)(x, count);
}
float row_max(const float* x, int64_t count) {
  return HWY_DYNAMIC_DISPATCH(RowMax)(x, count);
}
float max_of_sum(const float* x, const float* y, int64_t count) {
  return HWY_DYNAMIC_DISPATCH(MaxOfSum)(x, y, count);
}
float log_sum_exp(const float* x, int64_t count) {
  return HWY_DYNAMIC_DISPATCH(LogSumExp)(x, count);
}
void add_scaled(const float* x, float scale, int64_t count, float* y) {
  HWY_DYNAMIC_DISPATCH(AddScaled)(x, scale, count, y);
}
void add_product(const float* x, const float* y, int64_t count, float* z) {
  HWY_DYNAMIC_DISPATCH(AddProduct)(x, y, count, z);
}
void add_constant(float c, int64_t count, float* x) {
  HWY_DYNAMIC_DISPATCH(AddConstant)(c, count, x);
}
void scale_row(float scale, int64_t count, float* x) {
  HWY_DYNAMIC_DISPATCH(ScaleRow)(scale, count, x);
}
void multiply(const float* x, int64_t count, float* y) {
  HWY_DYNAMIC_DISPATCH(Multiply)(x, count, y);
}
void keep_larger(const float* x, int64_t count, float* y) {
  HWY_DYNAMIC_DISPATCH(KeepLarger)(x, count, y);
}
float exp_and_sum(float shift, int64_t count, float* x) {
  return HWY_DYNAMIC_DISPATCH(ExpAndSum)(shift, count, x);
}
void exp_shifted(const float* x, float c, int64_t count, float* out) {
  HWY_DYNAMIC_DISPATCH(ExpShifted)(x, c, count, out);
}
void exp_of_sum(const float* x, const float* y, float c, int64_t count, float* out) {
  HWY_DYNAMIC_DISPATCH(ExpOfSum)(x, y, c, count, out);
}
void exp_of_difference(const float* x, const float* y, int64_t count, float* out) {
  HWY_DYNAMIC_DISPATCH(ExpOfDifference)(x, y, count, out);
}
void add_matrix_vector(const float* a, const float* x, float c, int64_t rows, int64_t count,
                       float* y) {
  HWY_DYNAMIC_DISPATCH(AddMatrixVector)(a, x, c, rows, count, y);
}
void add_weighted_rows(const float* a, const float* w, int64_t rows, int64_t count, float* y) {
  HWY_DYNAMIC_DISPATCH(AddWeightedRows)(a, w, rows, count, y);
}

}  // namespace dofla::cpu
#endif
