#include "dofla/ops/cpu/tile_matrix.h"

#include <algorithm>
#include <memory>
#include <type_traits>

#include "dofla/core/error.h"
#include "dofla/core/parallel.h"
#include "dofla/ops/cpu/x86_intrinsics.h"

namespace dofla::cpu {
namespace {

constexpr int64_t kTileRows = 16, kTileInner = 32;

// bf16 has 8 significant bits, float32 24 and float16 11.
int64_t part_count(DType dtype) {
  if (dtype == DType::kBF16) return 1;
  return dtype == DType::kF16 ? 2 : 3;
}

}  // namespace

void TileMatrix::reset(TileSide side, const TileSource& source) {
  require(source.row_step == 1 || source.inner_step == 1, "tiles of a matrix without a dense side");
  side_ = side;
  source_ = source;
  parts_ = part_count(source.dtype);
  inner_blocks_ = (source.inner + kTileInner - 1) / kTileInner;
  const auto needed =
      static_cast<size_t>(bands() * (kBand / kTileRows) * inner_blocks_ * parts_ * kTile);
  constexpr size_t kAlignment = 64;
  if (memory_.size() < needed + kAlignment) memory_.resize(needed + kAlignment);
  void* begin = memory_.data();
  size_t room = memory_.size() * sizeof(uint16_t);
  tiles_ = static_cast<uint16_t*>(std::align(kAlignment, needed * sizeof(uint16_t), begin, room));
}

uint16_t* TileMatrix::tile(int64_t row_block, int64_t inner_block) const {
  return tiles_ + (row_block * inner_blocks_ + inner_block) * parts_ * kTile;
}

void fill_bands(TileMatrix& matrix) {
  parallel_for(matrix.bands(), [&](int64_t band) { matrix.fill_band(band); });
}

#if HWY_ARCH_X86_64

HWY_PUSH_ATTRIBUTES("avx512f,avx512bw,avx512dq,avx512vl,avx512bf16")

namespace {

// The first `count` of 16 numbers; 0 for the others.
__mmask16 first(int64_t count) {
  return static_cast<__mmask16>((1u << std::clamp<int64_t>(count, 0, 16)) - 1);
}

__m512 from_bf16(__m256i bits) {  // a bfloat16 is the upper half of a float
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(bits), 16));
}

// 32 numbers that are parted into bf16 numbers: take() returns those next to them and keeps what is
// then left.
struct FloatLine {
  __m512 low, high;

  FloatLine(const float* from, int64_t count, const float* next, int64_t next_count)
      : low(_mm512_maskz_loadu_ps(first(count), from)),
        high(_mm512_maskz_loadu_ps(first(next_count), next)) {}
  FloatLine(const Float16* from, int64_t count, const Float16* next, int64_t next_count)
      : low(_mm512_cvtph_ps(_mm256_maskz_loadu_epi16(first(count), from))),
        high(_mm512_cvtph_ps(_mm256_maskz_loadu_epi16(first(next_count), next))) {}

  __m512i take() {
    const __m512i part = (__m512i)_mm512_cvtne2ps_pbh(high, low);
    low = _mm512_sub_ps(low, from_bf16(_mm512_castsi512_si256(part)));
    high = _mm512_sub_ps(high, from_bf16(_mm512_extracti64x4_epi64(part, 1)));
    return part;
  }
};

// Such numbers are their only part.
struct BFloatLine {
  __m512i line;

  BFloatLine(const BFloat16* from, int64_t count, const BFloat16* next, int64_t next_count)
      : line(
            _mm512_inserti64x4(_mm512_castsi256_si512(_mm256_maskz_loadu_epi16(first(count), from)),
                               _mm256_maskz_loadu_epi16(first(next_count), next), 1)) {}

  __m512i take() { return line; }
};

template <class T>
using Line = std::conditional_t<std::is_same_v<T, BFloat16>, BFloatLine, FloatLine>;

// Turns a tile of 16 × 16 pairs around, by exchanging halves, quarters and so on.
void transpose(uint16_t* tile) {
  __m512i line[16];
  for (int i = 0; i < 16; ++i) line[i] = _mm512_load_si512(tile + ptrdiff_t{32} * i);
  const __m512i own = _mm512_set_epi32(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0);
  for (int step = 1; step < 16; step *= 2) {
    const __m512i steps = _mm512_set1_epi32(step);
    const __mmask16 upper = _mm512_test_epi32_mask(own, steps);
    // Of two lines a and b the first keeps its lower places and takes those of b, 16 and up.
    const __m512i to_first =
        _mm512_mask_add_epi32(own, upper, _mm512_sub_epi32(own, steps), _mm512_set1_epi32(16));
    const __m512i to_second =
        _mm512_mask_add_epi32(_mm512_add_epi32(own, steps), upper, own, _mm512_set1_epi32(16));
    for (int i = 0; i < 16; ++i) {
      if ((i & step) != 0) continue;
      const __m512i a = line[i], b = line[i + step];
      line[i] = _mm512_permutex2var_epi32(a, to_first, b);
      line[i + step] = _mm512_permutex2var_epi32(a, to_second, b);
    }
  }
  for (int i = 0; i < 16; ++i) _mm512_store_si512(tile + ptrdiff_t{32} * i, line[i]);
}

}  // namespace

template <class T>
void TileMatrix::fill_tile(int64_t row_block, int64_t inner_block) const {
  const T* data = static_cast<const T*>(source_.data);
  const int64_t row = row_block * kTileRows, inner = inner_block * kTileInner;
  const int64_t rows_left = source_.rows - row, inner_left = source_.inner - inner;
  const bool dense_rows = source_.inner_step == 1;
  const __m512i interleave =
      _mm512_set_epi16(31, 15, 30, 14, 29, 13, 28, 12, 27, 11, 26, 10, 25, 9, 24, 8, 23, 7, 22, 6,
                       21, 5, 20, 4, 19, 3, 18, 2, 17, 1, 16, 0);
  uint16_t* to = tile(row_block, inner_block);
  for (int64_t i = 0; i < 16; ++i) {
    // A line is a row, or two of the summed extent; past the end of the matrix it is 0.
    const T *from = data, *next = data;
    int64_t count = 0, next_count = 0;
    if (dense_rows && i < rows_left) {
      from += (row + i) * source_.row_step + inner;
      count = std::min<int64_t>(16, inner_left);
      next = from + count;
      next_count = inner_left - count;
    } else if (!dense_rows && 2 * i < inner_left) {
      from += (inner + 2 * i) * source_.inner_step + row;
      count = rows_left;
      if (2 * i + 1 < inner_left) next = from + source_.inner_step, next_count = rows_left;
    }
    Line<T> numbers(from, count, next, next_count);
    for (int64_t part = 0; part < parts_; ++part) {
      __m512i line = numbers.take();
      if (!dense_rows) line = _mm512_permutexvar_epi16(interleave, line);
      _mm512_store_si512(to + part * kTile + i * 32, line);
    }
  }
  // A left tile has a row a line, a right one a pair of the summed extent.
  if (dense_rows != (side_ == TileSide::kLeft))
    for (int64_t part = 0; part < parts_; ++part) transpose(to + part * kTile);
}

void TileMatrix::fill_band(int64_t band) {
  constexpr int64_t kBlocks = kBand / kTileRows;
  for (int64_t row_block = band * kBlocks; row_block < (band + 1) * kBlocks; ++row_block)
    for (int64_t inner_block = 0; inner_block < inner_blocks_; ++inner_block)
      switch (source_.dtype) {
        case DType::kBF16:
          fill_tile<BFloat16>(row_block, inner_block);
          break;
        case DType::kF16:
          fill_tile<Float16>(row_block, inner_block);
          break;
        default:
          require(source_.dtype == DType::kF32, "tiles of {}", name(source_.dtype));
          fill_tile<float>(row_block, inner_block);
      }
}

HWY_POP_ATTRIBUTES

#else

void TileMatrix::fill_band(int64_t) {
  fail("this processor has no tiles of bf16");
}

#endif

}  // namespace dofla::cpu
