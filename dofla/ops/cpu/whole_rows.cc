#include "dofla/ops/cpu/whole_rows.h"

#include <algorithm>
#include <cstring>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "dofla/ops/cpu/whole_rows.cc"
#include <hwy/foreach_target.h>

#include "dofla/ops/cpu/weight_loads-inl.h"

HWY_BEFORE_NAMESPACE();
namespace dofla::cpu::HWY_NAMESPACE {

#if HWY_TARGET == HWY_SCALAR

void MultiplyWholeOutputMajor(const int8_t* weight, int64_t inputs, int64_t outputs,
                              const int16_t* x, int64_t x_stride, int64_t rows, float* y,
                              int64_t y_stride) {
  for (int64_t r = 0; r < rows; ++r)
    for (int64_t n = 0; n < outputs; ++n) {
      int64_t sum = 0;
      for (int64_t k = 0; k < inputs; ++k)
        sum += int64_t{weight[n * inputs + k]} * x[r * x_stride + k];
      y[r * y_stride + n] += static_cast<float>(sum);
    }
}

int64_t MultiplyVectors(const int8_t*, int64_t, int64_t, int64_t, const int16_t*, int64_t, int64_t,
                        int32_t*, bool, float*, int64_t) {
  return 0;
}

#else

using Halves = hn::ScalableTag<int16_t>;
using Words = hn::RepartitionToWide<Halves>;
using Bytes = hn::Rebind<int8_t, Halves>;  // as many as there are halves
using HalfVector = hn::Vec<Halves>;
using WordVector = hn::Vec<Words>;

HWY_INLINE int64_t half_count() {
  return static_cast<int64_t>(hn::Lanes(Halves()));
}

// sum + the products of a and b, added by pairs.
HWY_INLINE WordVector add_pairs(HalfVector a, HalfVector b, WordVector sum) {
  WordVector rest = hn::Zero(Words());  // where the instructions have two halves of a result
  sum = hn::ReorderWidenMulAccumulate(Words(), a, b, sum, rest);
#if HWY_ARCH_X86
  return sum;
#else
  return hn::Add(sum, rest);
#endif
}

// One weight row against kRows of x, as vectors whose lanes are still to be summed. Every lane sums
// its part of up to exact_inputs() exactly; `count` fills the vectors.
HWY_INLINE int64_t exact_inputs() {
  return kMostExact / 2 * half_count();
}
template <int64_t kRows>
HWY_INLINE void WholeVectors(const int8_t* weight, const int16_t* x, int64_t x_stride,
                             int64_t count, Vector* total) {
  WordVector sum[kRows];
  for (int64_t r = 0; r < kRows; ++r) sum[r] = hn::Zero(Words());
  for (int64_t k = 0; k < count; k += half_count()) {
    const HalfVector w = hn::PromoteTo(Halves(), hn::LoadU(Bytes(), weight + k));
    for (int64_t r = 0; r < kRows; ++r)
      sum[r] = add_pairs(w, hn::LoadU(Halves(), x + r * x_stride + k), sum[r]);
  }
  for (int64_t r = 0; r < kRows; ++r) total[r] = hn::ConvertTo(Floats(), sum[r]);
}

template <int64_t kRows>
HWY_INLINE void DotWhole(const int8_t* weight, const int16_t* x, int64_t x_stride, int64_t inputs,
                         float* y, int64_t y_stride) {
  const int64_t full = inputs / half_count() * half_count();
  for (int64_t k = 0; k < full; k += exact_inputs()) {
    Vector total[kRows];
    WholeVectors<kRows>(weight + k, x + k, x_stride, HWY_MIN(exact_inputs(), full - k), total);
    for (int64_t r = 0; r < kRows; ++r)
      y[r * y_stride] += hn::GetLane(hn::SumOfLanes(Floats(), total[r]));
  }
  for (int64_t r = 0; r < kRows && full < inputs; ++r) {
    int32_t rest = 0;
    for (int64_t k = full; k < inputs; ++k) rest += int32_t{weight[k]} * x[r * x_stride + k];
    y[r * y_stride] += static_cast<float>(rest);
  }
}

#if HWY_ARCH_X86 && HWY_TARGET <= HWY_AVX3
// Four weight rows against four of x, where the inputs fill the vectors and are few enough.
HWY_INLINE void DotWholeSquare(const int8_t* weight, const int16_t* x, int64_t x_stride,
                               int64_t inputs, float* y, int64_t y_stride) {
  WordVector sum[4][4];
  for (auto& row : sum) std::fill_n(row, 4, hn::Zero(Words()));
  for (int64_t k = 0; k < inputs; k += half_count()) {
    HalfVector w[4];
    for (int64_t n = 0; n < 4; ++n)
      w[n] = hn::PromoteTo(Halves(), hn::LoadU(Bytes(), weight + n * inputs + k));
    for (int64_t r = 0; r < 4; ++r) {
      const HalfVector factor = hn::LoadU(Halves(), x + r * x_stride + k);
      for (int64_t n = 0; n < 4; ++n) sum[n][r] = add_pairs(w[n], factor, sum[n][r]);
    }
  }
  Vector v[4][4];
  for (int64_t n = 0; n < 4; ++n)
    for (int64_t r = 0; r < 4; ++r) v[n][r] = hn::ConvertTo(Floats(), sum[n][r]);
  float sums[16];
  sum_lanes_of_sixteen(v, sums);
  for (int64_t r = 0; r < 4; ++r)
    for (int64_t n = 0; n < 4; ++n) y[r * y_stride + n] += sums[4 * r + n];
}
#endif

void MultiplyWholeOutputMajor(const int8_t* weight, int64_t inputs, int64_t outputs,
                              const int16_t* x, int64_t x_stride, int64_t rows, float* y,
                              int64_t y_stride) {
  constexpr int64_t kTogether = 4, kPanel = 16;  // weight rows that stay in the cache
  for (int64_t begin = 0; begin < outputs; begin += kPanel) {
    const int64_t end = HWY_MIN(begin + kPanel, outputs);
    int64_t r = 0;
    for (; r + kTogether <= rows; r += kTogether) {
      int64_t n = begin;
#if HWY_ARCH_X86 && HWY_TARGET <= HWY_AVX3
      const bool square = inputs % half_count() == 0 && inputs <= exact_inputs();
      for (; square && n + 4 <= end; n += 4)
        DotWholeSquare(weight + n * inputs, x + r * x_stride, x_stride, inputs,
                       y + r * y_stride + n, y_stride);
#endif
      for (; n < end; ++n)
        DotWhole<kTogether>(weight + n * inputs, x + r * x_stride, x_stride, inputs,
                            y + r * y_stride + n, y_stride);
    }
    for (; r < rows; ++r)
      for (int64_t n = begin; n < end; ++n)
        DotWhole<1>(weight + n * inputs, x + r * x_stride, x_stride, inputs, y + r * y_stride + n,
                    y_stride);
  }
}

// Two weight rows as pairs, column by column: the first half of every block of columns, and the
// second.
struct Pairs {
  HalfVector first, second;
};
HWY_INLINE Pairs load_pairs(const int8_t* weight, int64_t stride, bool both) {
  const Bytes bytes;
  const auto one = hn::LoadU(bytes, weight);
  const auto other = both ? hn::LoadU(bytes, weight + stride) : hn::Zero(bytes);
  return {hn::PromoteTo(Halves(), hn::InterleaveLower(bytes, one, other)),
          hn::PromoteTo(Halves(), hn::InterleaveUpper(bytes, one, other))};
}

HWY_INLINE HalfVector pair_of(const int16_t* x, bool both) {
  int16_t pair[2] = {x[0], both ? x[1] : int16_t{0}};
  int32_t word = 0;
  std::memcpy(&word, pair, sizeof word);
  return hn::BitCast(Halves(), hn::Set(Words(), word));
}

// Adds up to 2 kPairs inputs to the sums of all columns that fill vectors. Those of a vector of
// columns lie as load_pairs has them.
template <int64_t kPairs>
HWY_INLINE void AddInputs(const int8_t* weight, int64_t stride, bool even, int64_t columns,
                          const int16_t* x, int64_t x_stride, int64_t rows, int32_t* sums) {
  const Words words;
  const int64_t width = half_count();
  // What comes next lies in other rows, which the hardware does not see coming.
  const int8_t* ahead = weight + 2 * kPairs * stride;
  for (int64_t n = 0; n + width <= columns; n += width) {
    Pairs w[kPairs];
    for (int64_t p = 0; p < kPairs; ++p) {
      const bool both = even || p + 1 < kPairs;
      w[p] = load_pairs(weight + 2 * p * stride + n, stride, both);
      __builtin_prefetch(ahead + 2 * p * stride + n, 0, 2);
      __builtin_prefetch(ahead + (2 * p + 1) * stride + n, 0, 2);
    }
    for (int64_t r = 0; r < rows; ++r) {
      int32_t* const own = sums + r * columns + n;
      WordVector first = hn::LoadU(words, own), second = hn::LoadU(words, own + width / 2);
      for (int64_t p = 0; p < kPairs; ++p) {
        const HalfVector factor = pair_of(x + r * x_stride + 2 * p, even || p + 1 < kPairs);
        first = add_pairs(w[p].first, factor, first);
        second = add_pairs(w[p].second, factor, second);
      }
      hn::StoreU(first, words, own);
      hn::StoreU(second, words, own + width / 2);
    }
  }
}

// The columns that fill vectors; returns how many.
HWY_INLINE int64_t MultiplyVectors(const int8_t* weight, int64_t stride, int64_t inputs,
                                   int64_t columns, const int16_t* x, int64_t x_stride,
                                   int64_t rows, int32_t* sums, bool add, float* y,
                                   int64_t y_stride) {
  constexpr int64_t kPairs = 4;
  std::fill_n(sums, rows * columns, 0);
  int64_t k = 0;
  for (; k + 2 * kPairs <= inputs; k += 2 * kPairs)
    AddInputs<kPairs>(weight + k * stride, stride, true, columns, x + k, x_stride, rows, sums);
  for (; k < inputs; k += 2)
    AddInputs<1>(weight + k * stride, stride, k + 1 < inputs, columns, x + k, x_stride, rows, sums);

  const hn::CappedTag<int32_t, 8> words;  // half of a block of 16 columns
  const hn::RebindToFloat<decltype(words)> floats;
  const int64_t half = static_cast<int64_t>(hn::Lanes(words));
  const int64_t width = half_count(), full = columns / width * width;
  for (int64_t r = 0; r < rows; ++r, sums += columns, y += y_stride)
    for (int64_t n = 0; n < full; n += 2 * half) {
      const int64_t vector = n / width * width, block = (n - vector) / 2;
      for (int64_t i = 0; i < 2; ++i) {
        float* const to = y + n + i * half;
        const auto sum = hn::LoadU(words, sums + vector + i * width / 2 + block);
        const auto before = add ? hn::LoadU(floats, to) : hn::Zero(floats);
        hn::StoreU(hn::Add(before, hn::ConvertTo(floats, sum)), floats, to);
      }
    }
  return full;
}

#endif  // HWY_SCALAR

void MultiplyWholeInputMajor(const int8_t* weight, int64_t stride, int64_t inputs, int64_t columns,
                             const int16_t* x, int64_t x_stride, int64_t rows, int32_t* sums,
                             bool add, float* y, int64_t y_stride) {
  const int64_t done =
      MultiplyVectors(weight, stride, inputs, columns, x, x_stride, rows, sums, add, y, y_stride);
  for (int64_t r = 0; r < rows; ++r)
    for (int64_t n = done; n < columns; ++n) {
      int32_t sum = 0;
      for (int64_t k = 0; k < inputs; ++k)
        sum += int32_t{weight[k * stride + n]} * x[r * x_stride + k];
      float& to = y[r * y_stride + n];
      to = (add ? to : 0.0f) + static_cast<float>(sum);
    }
}

}  // namespace dofla::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace dofla::cpu {

HWY_EXPORT(MultiplyWholeOutputMajor);
HWY_EXPORT(MultiplyWholeInputMajor);

void multiply_whole_output_major(const int8_t* weight, int64_t inputs, int64_t outputs,
                                 const int16_t* x, int64_t x_stride, int64_t rows, float* y,
                                 int64_t y_stride) {
  HWY_DYNAMIC_DISPATCH(MultiplyWholeOutputMajor)
  (weight, inputs, outputs, x, x_stride, rows, y, y_stride);
}

void multiply_whole_input_major(const int8_t* weight, int64_t stride, int64_t inputs,
                                int64_t columns, const int16_t* x, int64_t x_stride, int64_t rows,
                                int32_t* sums, bool add, float* y, int64_t y_stride) {
  HWY_DYNAMIC_DISPATCH(MultiplyWholeInputMajor)
  (weight, stride, inputs, columns, x, x_stride, rows, sums, add, y, y_stride);
}

}  // namespace dofla::cpu
#endif
