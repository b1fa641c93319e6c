#include "dofla/ops/cpu/weight_rows.h"

#include "dofla/core/error.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "dofla/ops/cpu/weight_rows.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace dofla::cpu::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;
using Floats = hn::ScalableTag<float>;
using Vector = hn::Vec<Floats>;

HWY_INLINE Vector load(const float* from) {
  return hn::LoadU(Floats(), from);
}

HWY_INLINE Vector load(const BFloat16* from) {  // a bfloat16 is the upper half of a float
  const hn::Rebind<uint16_t, Floats> halves;
  const hn::Rebind<uint32_t, Floats> words;
  const auto bits = hn::LoadU(halves, reinterpret_cast<const uint16_t*>(from));
  return hn::BitCast(Floats(), hn::ShiftLeft<16>(hn::PromoteTo(words, bits)));
}

HWY_INLINE Vector load(const Float16* from) {
  const hn::Rebind<hwy::float16_t, Floats> halves;
  return hn::PromoteTo(Floats(), hn::LoadU(halves, reinterpret_cast<const hwy::float16_t*>(from)));
}

HWY_INLINE float widen_one(float x) {
  return x;
}
HWY_INLINE float widen_one(BFloat16 x) {
  return to_float(x);
}
HWY_INLINE float widen_one(Float16 x) {
  return to_float(x);
}

template <class T>
void Widen(const T* from, int64_t count, float* to) {
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(Floats()));
  int64_t i = 0;
  for (; i + lanes <= count; i += lanes) hn::StoreU(load(from + i), Floats(), to + i);
  for (; i < count; ++i) to[i] = widen_one(from[i]);
}

void WidenF32(const float* from, int64_t count, float* to) {
  Widen(from, count, to);
}
void WidenBF16(const BFloat16* from, int64_t count, float* to) {
  Widen(from, count, to);
}
void WidenF16(const Float16* from, int64_t count, float* to) {
  Widen(from, count, to);
}

// Dot products of four weight rows with one row of x: four independent streams hide the latency
// of memory.
template <class T>
HWY_INLINE void Dot4(const T* weight, int64_t inputs, const float* x, float* y) {
  const Floats d;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  Vector sum0 = hn::Zero(d), sum1 = sum0, sum2 = sum0, sum3 = sum0;
  int64_t k = 0;
  for (; k + lanes <= inputs; k += lanes) {
    const Vector xs = hn::LoadU(d, x + k);
    sum0 = hn::MulAdd(load(weight + k), xs, sum0);
    sum1 = hn::MulAdd(load(weight + inputs + k), xs, sum1);
    sum2 = hn::MulAdd(load(weight + 2 * inputs + k), xs, sum2);
    sum3 = hn::MulAdd(load(weight + 3 * inputs + k), xs, sum3);
  }
  float sums[4] = {hn::GetLane(hn::SumOfLanes(d, sum0)), hn::GetLane(hn::SumOfLanes(d, sum1)),
                   hn::GetLane(hn::SumOfLanes(d, sum2)), hn::GetLane(hn::SumOfLanes(d, sum3))};
  for (; k < inputs; ++k)
    for (int64_t n = 0; n < 4; ++n) sums[n] += widen_one(weight[n * inputs + k]) * x[k];
  for (int64_t n = 0; n < 4; ++n) y[n] += sums[n];
}

template <class T>
HWY_INLINE void Dot1(const T* weight, int64_t inputs, const float* x, float* y) {
  const Floats d;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  Vector sum = hn::Zero(d);
  int64_t k = 0;
  for (; k + lanes <= inputs; k += lanes)
    sum = hn::MulAdd(load(weight + k), hn::LoadU(d, x + k), sum);
  float total = hn::GetLane(hn::SumOfLanes(d, sum));
  for (; k < inputs; ++k) total += widen_one(weight[k]) * x[k];
  *y += total;
}

template <class T>
void OutputMajor(const T* weight, int64_t inputs, int64_t outputs, const float* x, int64_t x_stride,
                 int64_t rows, float* y, int64_t y_stride) {
  int64_t n = 0;
  for (; n + 4 <= outputs; n += 4)
    for (int64_t r = 0; r < rows; ++r)
      Dot4(weight + n * inputs, inputs, x + r * x_stride, y + r * y_stride + n);
  for (; n < outputs; ++n)
    for (int64_t r = 0; r < rows; ++r)
      Dot1(weight + n * inputs, inputs, x + r * x_stride, y + r * y_stride + n);
}

// y[0, count) += x[0] w[0] + … + x[3] w[3] for four consecutive weight rows, so that y is loaded
// and stored once for four rows.
template <class T>
HWY_INLINE void Axpy4(const T* weight, int64_t stride, const float* x, int64_t count, float* y) {
  const Floats d;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  const Vector x0 = hn::Set(d, x[0]), x1 = hn::Set(d, x[1]);
  const Vector x2 = hn::Set(d, x[2]), x3 = hn::Set(d, x[3]);
  int64_t n = 0;
  for (; n + lanes <= count; n += lanes) {
    Vector sum = hn::MulAdd(load(weight + n), x0, hn::LoadU(d, y + n));
    sum = hn::MulAdd(load(weight + stride + n), x1, sum);
    sum = hn::MulAdd(load(weight + 2 * stride + n), x2, sum);
    sum = hn::MulAdd(load(weight + 3 * stride + n), x3, sum);
    hn::StoreU(sum, d, y + n);
  }
  for (; n < count; ++n)
    for (int64_t k = 0; k < 4; ++k) y[n] += widen_one(weight[k * stride + n]) * x[k];
}

template <class T>
void InputMajor(const T* weight, int64_t inputs, int64_t outputs, int64_t begin, int64_t end,
                const float* x, int64_t x_stride, int64_t rows, float* y, int64_t y_stride) {
  int64_t k = 0;
  for (; k + 4 <= inputs; k += 4)
    for (int64_t r = 0; r < rows; ++r)
      Axpy4(weight + k * outputs + begin, outputs, x + r * x_stride + k, end - begin,
            y + r * y_stride + begin);
  for (; k < inputs; ++k)
    for (int64_t r = 0; r < rows; ++r)
      for (int64_t n = begin; n < end; ++n)
        y[r * y_stride + n] += widen_one(weight[k * outputs + n]) * x[r * x_stride + k];
}

void MultiplyOutputMajor(const void* weight, DType dtype, int64_t inputs, int64_t outputs,
                         const float* x, int64_t x_stride, int64_t rows, float* y,
                         int64_t y_stride) {
  const auto run = [&]<class T>(const T* typed) {
    OutputMajor(typed, inputs, outputs, x, x_stride, rows, y, y_stride);
  };
  if (dtype == DType::kF32) run(static_cast<const float*>(weight));
  if (dtype == DType::kBF16) run(static_cast<const BFloat16*>(weight));
  if (dtype == DType::kF16) run(static_cast<const Float16*>(weight));
}

void MultiplyInputMajor(const void* weight, DType dtype, int64_t inputs, int64_t outputs,
                        int64_t begin, int64_t end, const float* x, int64_t x_stride, int64_t rows,
                        float* y, int64_t y_stride) {
  const auto run = [&]<class T>(const T* typed) {
    InputMajor(typed, inputs, outputs, begin, end, x, x_stride, rows, y, y_stride);
  };
  if (dtype == DType::kF32) run(static_cast<const float*>(weight));
  if (dtype == DType::kBF16) run(static_cast<const BFloat16*>(weight));
  if (dtype == DType::kF16) run(static_cast<const Float16*>(weight));
}

}  // namespace dofla::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace dofla::cpu {

HWY_EXPORT(WidenF32);
HWY_EXPORT(WidenBF16);
HWY_EXPORT(WidenF16);
HWY_EXPORT(MultiplyOutputMajor);
HWY_EXPORT(MultiplyInputMajor);

void widen(const float* from, int64_t count, float* to) {
  HWY_DYNAMIC_DISPATCH(WidenF32)(from, count, to);
}
void widen(const BFloat16* from, int64_t count, float* to) {
  HWY_DYNAMIC_DISPATCH(WidenBF16)(from, count, to);
}
void widen(const Float16* from, int64_t count, float* to) {
  HWY_DYNAMIC_DISPATCH(WidenF16)(from, count, to);
}

void multiply_output_major(const void* weight, DType dtype, int64_t inputs, int64_t outputs,
                           const float* x, int64_t x_stride, int64_t rows, float* y,
                           int64_t y_stride) {
  HWY_DYNAMIC_DISPATCH(MultiplyOutputMajor)
  (weight, dtype, inputs, outputs, x, x_stride, rows, y, y_stride);
}

void multiply_input_major(const void* weight, DType dtype, int64_t inputs, int64_t outputs,
                          int64_t begin, int64_t end, const float* x, int64_t x_stride,
                          int64_t rows, float* y, int64_t y_stride) {
  HWY_DYNAMIC_DISPATCH(MultiplyInputMajor)
  (weight, dtype, inputs, outputs, begin, end, x, x_stride, rows, y, y_stride);
}

}  // namespace dofla::cpu
#endif
