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

// One weight row after the other: memory is fastest when read strictly in order. Four sums keep
// the multipliers busy.
template <class T>
HWY_INLINE float DotRow(const T* weight, const float* x, int64_t count) {
  const Floats d;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  Vector sum0 = hn::Zero(d), sum1 = sum0, sum2 = sum0, sum3 = sum0;
  int64_t k = 0;
  for (; k + 4 * lanes <= count; k += 4 * lanes) {
    sum0 = hn::MulAdd(load(weight + k), hn::LoadU(d, x + k), sum0);
    sum1 = hn::MulAdd(load(weight + k + lanes), hn::LoadU(d, x + k + lanes), sum1);
    sum2 = hn::MulAdd(load(weight + k + 2 * lanes), hn::LoadU(d, x + k + 2 * lanes), sum2);
    sum3 = hn::MulAdd(load(weight + k + 3 * lanes), hn::LoadU(d, x + k + 3 * lanes), sum3);
  }
  for (; k + lanes <= count; k += lanes)
    sum0 = hn::MulAdd(load(weight + k), hn::LoadU(d, x + k), sum0);
  float total = hn::GetLane(hn::SumOfLanes(d, hn::Add(hn::Add(sum0, sum1), hn::Add(sum2, sum3))));
  for (; k < count; ++k) total += widen_one(weight[k]) * x[k];
  return total;
}

template <class T>
void OutputMajor(const T* weight, int64_t inputs, int64_t outputs, const float* x, int64_t x_stride,
                 int64_t rows, float* y, int64_t y_stride) {
  for (int64_t n = 0; n < outputs; ++n)
    for (int64_t r = 0; r < rows; ++r)
      y[r * y_stride + n] += DotRow(weight + n * inputs, x + r * x_stride, inputs);
}

// y[0, count) += Σ_k x[k] w[k] over kGroup consecutive weight rows: y is loaded and stored once for
// all of them.
constexpr int64_t kGroup = 8;

template <class T>
HWY_INLINE void AddRows(const T* weight, const float* x, int64_t count, float* y) {
  const Floats d;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  // The rows are many streams at once, which the hardware follows badly: fetch the next group in
  // the order it lies in memory while this one is worked on.
  const T* ahead = weight + kGroup * count;
  int64_t n = 0;
  for (; n + 2 * lanes <= count; n += 2 * lanes) {
    Vector sum0 = hn::LoadU(d, y + n), sum1 = hn::LoadU(d, y + n + lanes);
    for (int64_t k = 0; k < kGroup; ++k) {
      __builtin_prefetch(ahead, 0, 2);
      ahead += 2 * lanes;
      const Vector factor = hn::Set(d, x[k]);
      sum0 = hn::MulAdd(load(weight + k * count + n), factor, sum0);
      sum1 = hn::MulAdd(load(weight + k * count + n + lanes), factor, sum1);
    }
    hn::StoreU(sum0, d, y + n);
    hn::StoreU(sum1, d, y + n + lanes);
  }
  for (; n < count; ++n)
    for (int64_t k = 0; k < kGroup; ++k) y[n] += widen_one(weight[k * count + n]) * x[k];
}

template <class T>
void InputMajor(const T* weight, int64_t inputs, int64_t outputs, const float* x, int64_t x_stride,
                int64_t rows, float* y, int64_t y_stride) {
  int64_t k = 0;
  for (; k + kGroup <= inputs; k += kGroup)
    for (int64_t r = 0; r < rows; ++r)
      AddRows(weight + k * outputs, x + r * x_stride + k, outputs, y + r * y_stride);
  for (; k < inputs; ++k)
    for (int64_t r = 0; r < rows; ++r)
      for (int64_t n = 0; n < outputs; ++n)
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
                        const float* x, int64_t x_stride, int64_t rows, float* y,
                        int64_t y_stride) {
  const auto run = [&]<class T>(const T* typed) {
    InputMajor(typed, inputs, outputs, x, x_stride, rows, y, y_stride);
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
                          const float* x, int64_t x_stride, int64_t rows, float* y,
                          int64_t y_stride) {
  HWY_DYNAMIC_DISPATCH(MultiplyInputMajor)
  (weight, dtype, inputs, outputs, x, x_stride, rows, y, y_stride);
}

}  // namespace dofla::cpu
#endif
