// Products of a weight of [inputs, outputs] with many rows.
#include <algorithm>

#include "dofla/ops/cpu/weight_rows.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "dofla/ops/cpu/weight_tiles.cc"
#include <hwy/foreach_target.h>

#include "dofla/ops/cpu/weight_loads-inl.h"

HWY_BEFORE_NAMESPACE();
namespace dofla::cpu::HWY_NAMESPACE {

// Some rows of a weight, widened, as tiles of two vectors of columns each.
constexpr int64_t kTileRows = 128;

template <class T>
HWY_INLINE void PackTiles(const T* weight, int64_t stride, int64_t rows, int64_t columns,
                          float* tiles) {
  const Floats d;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d)), width = 2 * lanes;
  for (int64_t k = 0; k < rows; ++k, weight += stride) {
    float* to = tiles + k * width;
    int64_t n = 0;
    for (; n + width <= columns; n += width, to += kTileRows * width) {
      hn::Store(load(weight + n), d, to);
      hn::Store(load(weight + n + lanes), d, to + lanes);
    }
    for (int64_t i = 0; n < columns && i < width; ++i)
      to[i] = n + i < columns ? widen_one(weight[n + i]) : 0.0f;
  }
}

// What follows these rows of a tile is wanted soon, and the hardware does not see it coming.
template <class T>
HWY_INLINE void FetchTile(const T* weight, int64_t stride, int64_t rows) {
  constexpr int64_t kLine = 64 / static_cast<int64_t>(sizeof(T));
  const int64_t width = 2 * static_cast<int64_t>(hn::Lanes(Floats()));
  for (int64_t k = 0; k < rows; ++k, weight += stride)
    for (int64_t n = 0; n < width; n += kLine) __builtin_prefetch(weight + n, 0, 2);
}

// to[r] = from[r] + Σ_k tile[k] x[r][k] for kRows rows of x, with 0 for a null `from`; or, where
// the sum is not to go on, to[r] += the whole of it. Rows of the tile are `stride` apart.
template <int64_t kRows, class T>
HWY_INLINE void AddTile(const T* tile, int64_t stride, int64_t inputs, const float* x,
                        int64_t x_stride, const float* from, bool whole, float* to,
                        int64_t to_stride) {
  const Floats d;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  Vector sum[kRows][2];
  for (int64_t r = 0; r < kRows; ++r)
    for (int64_t i = 0; i < 2; ++i)
      sum[r][i] = from == nullptr ? hn::Zero(d) : hn::LoadU(d, from + (2 * r + i) * lanes);
  for (int64_t k = 0; k < inputs; ++k, tile += stride) {
    const Vector w0 = load(tile), w1 = load(tile + lanes);
    for (int64_t r = 0; r < kRows; ++r) {
      const Vector factor = hn::Set(d, x[r * x_stride + k]);
      sum[r][0] = hn::MulAdd(w0, factor, sum[r][0]);
      sum[r][1] = hn::MulAdd(w1, factor, sum[r][1]);
    }
  }
  for (int64_t r = 0; r < kRows; ++r)
    for (int64_t i = 0; i < 2; ++i) {
      float* at = to + r * to_stride + i * lanes;
      hn::StoreU(whole ? hn::Add(hn::LoadU(d, at), sum[r][i]) : sum[r][i], d, at);
    }
}

// Every output is summed in the order of InputMajor, share by share. The weights are widened once,
// unless there are so few rows that it is as quick to do it for each of them.
template <class T>
void InputMajorColumns(const T* weight, int64_t inputs, int64_t outputs, int64_t columns,
                       const float* x, int64_t x_stride, int64_t rows, float* y, int64_t y_stride) {
  constexpr int64_t kTogether = 2 * kSharing;
  const int64_t width = 2 * static_cast<int64_t>(hn::Lanes(Floats()));
  const int64_t share = (inputs + kInputShares - 1) / kInputShares;
  const bool pack = rows > 2 * kTogether || columns % width != 0;
  HWY_ALIGN float tiles[kTileRows * kColumnsAtOnce];
  HWY_ALIGN float sums[kManyRows * kColumnsAtOnce];  // of a share so far
  for (int64_t first = 0; first < inputs; first += share)
    for (int64_t k = first, last = HWY_MIN(first + share, inputs); k < last; k += kTileRows) {
      const int64_t count = HWY_MIN(kTileRows, last - k);
      if (pack) PackTiles(weight + k * outputs, outputs, count, columns, tiles);
      const int64_t ahead = HWY_MIN(count, inputs - k - count);
      for (int64_t n = 0; n < columns; n += width) {
        FetchTile(weight + (k + count) * outputs + n, outputs, ahead);
        // A last tile that is not full does not fit y, and is added to it below.
        const bool full = n + width <= columns, whole = full && k + count == last;
        float* const own = sums + n * rows;
        float* const to = whole ? y + n : own;
        const int64_t stride = whole ? y_stride : width;
        int64_t r = 0;
        const auto add = [&]<int64_t kRows>() HWY_ATTR {
          const float* from = k == first ? nullptr : own + r * width;
          if (pack)
            AddTile<kRows>(tiles + n * kTileRows, width, count, x + r * x_stride + k, x_stride,
                           from, whole, to + r * stride, stride);
          else
            AddTile<kRows>(weight + k * outputs + n, outputs, count, x + r * x_stride + k, x_stride,
                           from, whole, to + r * stride, stride);
        };
        for (; r + kTogether <= rows; r += kTogether) add.template operator()<kTogether>();
        for (; r < rows; ++r) add.template operator()<1>();
        for (r = 0; !full && k + count == last && r < rows; ++r)
          for (int64_t i = 0; i < columns - n; ++i) y[r * y_stride + n + i] += own[r * width + i];
      }
    }
}

void MultiplyInputMajorColumns(const void* weight, DType dtype, int64_t inputs, int64_t outputs,
                               int64_t columns, const float* x, int64_t x_stride, int64_t rows,
                               float* y, int64_t y_stride) {
  with_type(weight, dtype, [&](const auto* typed) HWY_ATTR {
    InputMajorColumns(typed, inputs, outputs, columns, x, x_stride, rows, y, y_stride);
  });
}

}  // namespace dofla::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace dofla::cpu {

HWY_EXPORT(MultiplyInputMajorColumns);

void multiply_input_major_columns(const void* weight, DType dtype, int64_t inputs, int64_t outputs,
                                  int64_t columns, const float* x, int64_t x_stride, int64_t rows,
                                  float* y, int64_t y_stride) {
  HWY_DYNAMIC_DISPATCH(MultiplyInputMajorColumns)
  (weight, dtype, inputs, outputs, columns, x, x_stride, rows, y, y_stride);
}

}  // namespace dofla::cpu
#endif
