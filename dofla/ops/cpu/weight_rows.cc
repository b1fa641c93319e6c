#include "dofla/ops/cpu/weight_rows.h"

#include "dofla/core/error.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "dofla/ops/cpu/weight_rows.cc"
#include <hwy/foreach_target.h>

#include "dofla/ops/cpu/weight_loads-inl.h"

HWY_BEFORE_NAMESPACE();
namespace dofla::cpu::HWY_NAMESPACE {

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
void WidenI8(const int8_t* from, int64_t count, float* to) {
  Widen(from, count, to);
}

// One weight row against kRows of x, as vectors whose lanes are still to be summed; returns how
// many elements are in them, all but a rest of less than a vector. Memory is fastest when read
// strictly in order. Four sums a row keep the multipliers busy.
template <int64_t kRows, class T>
HWY_INLINE int64_t DotVectors(const T* weight, const float* x, int64_t x_stride, int64_t count,
                              Vector* total) {
  const Floats d;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  Vector sum[kRows][4];
  for (int64_t r = 0; r < kRows; ++r) sum[r][0] = sum[r][1] = sum[r][2] = sum[r][3] = hn::Zero(d);
  int64_t k = 0;
  for (; k + 4 * lanes <= count; k += 4 * lanes)
    for (int64_t i = 0; i < 4; ++i) {
      const Vector w = load(weight + k + i * lanes);
      for (int64_t r = 0; r < kRows; ++r)
        sum[r][i] = hn::MulAdd(w, hn::LoadU(d, x + r * x_stride + k + i * lanes), sum[r][i]);
    }
  for (; k + lanes <= count; k += lanes) {
    const Vector w = load(weight + k);
    for (int64_t r = 0; r < kRows; ++r)
      sum[r][0] = hn::MulAdd(w, hn::LoadU(d, x + r * x_stride + k), sum[r][0]);
  }
  for (int64_t r = 0; r < kRows; ++r)
    total[r] = hn::Add(hn::Add(sum[r][0], sum[r][1]), hn::Add(sum[r][2], sum[r][3]));
  return k;
}

template <int64_t kRows, class T>
HWY_INLINE void DotRows(const T* weight, const float* x, int64_t x_stride, int64_t count, float* y,
                        int64_t y_stride) {
  Vector total[kRows];
  const int64_t k = DotVectors<kRows>(weight, x, x_stride, count, total);
  for (int64_t r = 0; r < kRows; ++r) {
    float one = hn::GetLane(hn::SumOfLanes(Floats(), total[r]));
    for (int64_t i = k; i < count; ++i)
      one = mul_add(widen_one(weight[i]), x[r * x_stride + i], one);
    y[r * y_stride] += one;
  }
}

#if HWY_ARCH_X86 && HWY_TARGET <= HWY_AVX3
// Four weight rows against four of x, where the inputs fill the vectors.
template <class T>
HWY_INLINE void DotSquare(const T* weight, const float* x, int64_t x_stride, int64_t count,
                          float* y, int64_t y_stride) {
  Vector v[4][4];
  for (int64_t n = 0; n < 4; ++n) DotVectors<4>(weight + n * count, x, x_stride, count, v[n]);
  float sums[16];
  sum_lanes_of_sixteen(v, sums);
  for (int64_t r = 0; r < 4; ++r)
    for (int64_t n = 0; n < 4; ++n) y[r * y_stride + n] += sums[4 * r + n];
}
#endif

template <class T>
void OutputMajor(const T* weight, int64_t inputs, int64_t outputs, const float* x, int64_t x_stride,
                 int64_t rows, float* y, int64_t y_stride) {
  constexpr int64_t kPanel = 16;  // weight rows that stay in the cache while those of x pass by
  for (int64_t begin = 0; begin < outputs; begin += kPanel) {
    const int64_t end = HWY_MIN(begin + kPanel, outputs);
    int64_t r = 0;
    for (; r + kSharing <= rows; r += kSharing) {
      int64_t n = begin;
#if HWY_ARCH_X86 && HWY_TARGET <= HWY_AVX3
      for (; inputs % 16 == 0 && n + 4 <= end; n += 4)
        DotSquare(weight + n * inputs, x + r * x_stride, x_stride, inputs, y + r * y_stride + n,
                  y_stride);
#endif
      for (; n < end; ++n)
        DotRows<kSharing>(weight + n * inputs, x + r * x_stride, x_stride, inputs,
                          y + r * y_stride + n, y_stride);
    }
    for (; r < rows; ++r)
      for (int64_t n = begin; n < end; ++n)
        DotRows<1>(weight + n * inputs, x + r * x_stride, x_stride, inputs, y + r * y_stride + n,
                   y_stride);
  }
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
    for (int64_t k = 0; k < kGroup; ++k)
      y[n] = mul_add(widen_one(weight[k * count + n]), x[k], y[n]);
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
        y[r * y_stride + n] =
            mul_add(widen_one(weight[k * outputs + n]), x[r * x_stride + k], y[r * y_stride + n]);
}

void MultiplyOutputMajor(const void* weight, DType dtype, int64_t inputs, int64_t outputs,
                         const float* x, int64_t x_stride, int64_t rows, float* y,
                         int64_t y_stride) {
  with_type(weight, dtype, [&](const auto* typed) HWY_ATTR {
    OutputMajor(typed, inputs, outputs, x, x_stride, rows, y, y_stride);
  });
}

void MultiplyInputMajor(const void* weight, DType dtype, int64_t inputs, int64_t outputs,
                        const float* x, int64_t x_stride, int64_t rows, float* y,
                        int64_t y_stride) {
  with_type(weight, dtype, [&](const auto* typed) HWY_ATTR {
    InputMajor(typed, inputs, outputs, x, x_stride, rows, y, y_stride);
  });
}

}  // namespace dofla::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace dofla::cpu {

HWY_EXPORT(WidenF32);
HWY_EXPORT(WidenBF16);
HWY_EXPORT(WidenF16);
HWY_EXPORT(WidenI8);
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
void widen(const int8_t* from, int64_t count, float* to) {
  HWY_DYNAMIC_DISPATCH(WidenI8)(from, count, to);
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
