#include "dofla/ops/cpu/vector_math.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "dofla/ops/cpu/vector_math.cc"
#include <hwy/foreach_target.h>

#include "dofla/ops/cpu/vector_math-inl.h"

HWY_BEFORE_NAMESPACE();
namespace dofla::cpu {
namespace HWY_NAMESPACE {

float Largest(const float* x, int64_t n) {
  const Floats d;
  return lanes_max(fold(
      n, hn::Set(d, kLowest), kLowest, [](Vector acc, Vector a) { return hn::Max(acc, a); }, x));
}

float LargestOfSum(const float* x, const float* y, int64_t n) {
  const Floats d;
  return lanes_max(fold(
      n, hn::Set(d, kLowest), kLowest,
      [](Vector acc, Vector a, Vector b) { return hn::Max(acc, hn::Add(a, b)); }, x, y));
}

float Sum(const float* x, int64_t n) {
  return lanes_sum(fold(
      n, hn::Zero(Floats()), 0.0f, [](Vector acc, Vector a) { return hn::Add(acc, a); }, x));
}

float Dot(const float* x, const float* y, int64_t n) {
  return lanes_sum(fold(
      n, hn::Zero(Floats()), 0.0f,
      [](Vector acc, Vector a, Vector b) { return hn::MulAdd(a, b, acc); }, x, y));
}

void KeepLarger(const float* x, float* largest, int64_t n) {
  map(
      n, largest, [](Vector a, Vector b) { return hn::Max(a, b); },
      static_cast<const float*>(largest), x);
}

void AddConstant(float c, float* x, int64_t n) {
  const Vector shift = hn::Set(Floats(), c);
  map(
      n, x, [&](Vector a) { return hn::Add(a, shift); }, static_cast<const float*>(x));
}

void AddScaled(const float* x, float c, float* y, int64_t n) {
  const Vector factor = hn::Set(Floats(), c);
  map(
      n, y, [&](Vector a, Vector b) { return hn::MulAdd(a, factor, b); }, x,
      static_cast<const float*>(y));
}

void AddProduct(const float* x, const float* y, float* z, int64_t n) {
  map(
      n, z, [](Vector a, Vector b, Vector c) { return hn::MulAdd(a, b, c); }, x, y,
      static_cast<const float*>(z));
}

void Multiply(const float* x, float* y, int64_t n) {
  map(
      n, y, [](Vector a, Vector b) { return hn::Mul(a, b); }, x, static_cast<const float*>(y));
}

void Scale(float c, float* x, int64_t n) {
  const Vector factor = hn::Set(Floats(), c);
  map(
      n, x, [&](Vector a) { return hn::Mul(a, factor); }, static_cast<const float*>(x));
}

void ExpOfSum(const float* x, const float* y, float c, float* out, int64_t n) {
  const Vector shift = hn::Set(Floats(), c);
  map(
      n, out, [&](Vector a, Vector b) { return exp(hn::Add(hn::Add(a, b), shift)); }, x, y);
}

void ExpShifted(const float* x, float c, float* out, int64_t n) {
  const Vector shift = hn::Set(Floats(), c);
  map(
      n, out, [&](Vector a) { return exp(hn::Add(a, shift)); }, x);
}

void ExpOfDifference(const float* x, const float* y, float* out, int64_t n) {
  map(
      n, out, [](Vector a, Vector b) { return exp(hn::Sub(a, b)); }, x, y);
}

void AddMatrixVector(const float* a, const float* x, float c, float* y, int64_t rows, int64_t n) {
  const Vector zero = hn::Zero(Floats());
  const auto step = [](Vector acc, Vector u, Vector w) { return hn::MulAdd(u, w, acc); };
  int64_t r = 0;
  for (; r + 4 <= rows; r += 4) {  // four sums at once hide the latency of the additions
    const float* row = a + r * n;
    Vector s0 = zero, s1 = zero, s2 = zero, s3 = zero;
    int64_t i = 0;
    for (; i + lanes() <= n; i += lanes()) {
      const Vector v = load(x + i);
      s0 = step(s0, v, load(row + i));
      s1 = step(s1, v, load(row + n + i));
      s2 = step(s2, v, load(row + 2 * n + i));
      s3 = step(s3, v, load(row + 3 * n + i));
    }
    const Vector sums[4] = {s0, s1, s2, s3};
    for (int64_t j = 0; j < 4; ++j) {
      const Vector rest = fold(n - i, zero, 0.0f, step, x + i, row + j * n + i);
      y[r + j] += c * lanes_sum(hn::Add(sums[j], rest));
    }
  }
  for (; r < rows; ++r) y[r] += c * lanes_sum(fold(n, zero, 0.0f, step, x, a + r * n));
}

}  // namespace HWY_NAMESPACE
}  // namespace dofla::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace dofla::cpu {

HWY_EXPORT(Largest);
HWY_EXPORT(LargestOfSum);
HWY_EXPORT(Sum);
HWY_EXPORT(Dot);
HWY_EXPORT(KeepLarger);
HWY_EXPORT(AddConstant);
HWY_EXPORT(AddScaled);
HWY_EXPORT(AddProduct);
HWY_EXPORT(Multiply);
HWY_EXPORT(Scale);
HWY_EXPORT(ExpOfSum);
HWY_EXPORT(ExpShifted);
HWY_EXPORT(ExpOfDifference);
HWY_EXPORT(AddMatrixVector);

float largest(const float* x, int64_t n) {
  return HWY_DYNAMIC_DISPATCH(Largest)(x, n);
}
float largest_of_sum(const float* x, const float* y, int64_t n) {
  return HWY_DYNAMIC_DISPATCH(LargestOfSum)(x, y, n);
}
float sum(const float* x, int64_t n) {
  return HWY_DYNAMIC_DISPATCH(Sum)(x, n);
}
float dot(const float* x, const float* y, int64_t n) {
  return HWY_DYNAMIC_DISPATCH(Dot)(x, y, n);
}
void keep_larger(const float* x, float* largest, int64_t n) {
  HWY_DYNAMIC_DISPATCH(KeepLarger)(x, largest, n);
}
void add_constant(float c, float* x, int64_t n) {
  HWY_DYNAMIC_DISPATCH(AddConstant)(c, x, n);
}
void add_scaled(const float* x, float c, float* y, int64_t n) {
  HWY_DYNAMIC_DISPATCH(AddScaled)(x, c, y, n);
}
void add_product(const float* x, const float* y, float* z, int64_t n) {
  HWY_DYNAMIC_DISPATCH(AddProduct)(x, y, z, n);
}
void multiply(const float* x, float* y, int64_t n) {
  HWY_DYNAMIC_DISPATCH(Multiply)(x, y, n);
}
void scale(float c, float* x, int64_t n) {
  HWY_DYNAMIC_DISPATCH(Scale)(c, x, n);
}
void exp_of_sum(const float* x, const float* y, float c, float* out, int64_t n) {
  HWY_DYNAMIC_DISPATCH(ExpOfSum)(x, y, c, out, n);
}
void exp_shifted(const float* x, float c, float* out, int64_t n) {
  HWY_DYNAMIC_DISPATCH(ExpShifted)(x, c, out, n);
}
void exp_of_difference(const float* x, const float* y, float* out, int64_t n) {
  HWY_DYNAMIC_DISPATCH(ExpOfDifference)(x, y, out, n);
}
void add_matrix_vector(const float* a, const float* x, float c, float* y, int64_t rows, int64_t n) {
  HWY_DYNAMIC_DISPATCH(AddMatrixVector)(a, x, c, y, rows, n);
}

}  // namespace dofla::cpu
#endif
