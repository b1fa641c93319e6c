#include "dofla/ops/cpu/tile_products.h"

#include <algorithm>
#include <array>
#include <memory>
#include <type_traits>

#include <hwy/base.h>

#include "dofla/core/error.h"
#include "dofla/core/parallel.h"

#if HWY_ARCH_X86_64
// GCC 12 takes the undefined halves in its own header for mistakes.
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#include <cpuid.h>
#include <immintrin.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace dofla::cpu {
namespace {

constexpr int64_t kTileRows = 16, kTileInner = 32, kTile = kTileRows * kTileInner;

// So many tiles of the summed extent are multiplied before their sum joins y: with three parts a
// band of them, 48 KiB, nearly stays in the first cache.
constexpr int64_t kBlocksAtOnce = 24;

// bf16 has 8 significant bits, float32 24 and float16 11.
int64_t part_count(DType dtype) {
  if (dtype == DType::kBF16) return 1;
  return dtype == DType::kF16 ? 2 : 3;
}

// Which parts of the two sides are multiplied: what is left out is below the last bit of float32.
// Neighbours share a side, whose tiles then stay where they are; the largest comes last.
struct PartPair {
  int64_t left, right;
};
constexpr std::array<PartPair, 6> kPairs = {{{2, 0}, {1, 0}, {1, 1}, {0, 1}, {0, 2}, {0, 0}}};

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

bool has_tile_products() {
  static const bool has = [] {
    unsigned a = 0, b = 0, c = 0, d = 0;
    constexpr unsigned kTiles = 1u << 24, kTilesOfBf16 = 1u << 22, kBf16 = 1u << 5;
    if (__get_cpuid_count(7, 0, &a, &b, &c, &d) == 0) return false;
    if ((d & kTiles) == 0 || (d & kTilesOfBf16) == 0) return false;
    if (__get_cpuid_count(7, 1, &a, &b, &c, &d) == 0 || (a & kBf16) == 0) return false;
    // The system keeps the tiles of processes that have asked for it.
    constexpr long kRequestPermission = 0x1023, kTileData = 18;
    return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
  }();
  return has;
}

HWY_PUSH_ATTRIBUTES("avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,amx-tile,amx-bf16")

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
  for (int i = 0; i < 16; ++i) line[i] = _mm512_load_si512(tile + 32 * i);
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
  for (int i = 0; i < 16; ++i) _mm512_store_si512(tile + 32 * i, line[i]);
}

// Which tiles there are and what they hold, as the processor wants to be told.
struct alignas(64) TileShapes {
  uint8_t palette = 1, start_row = 0;
  std::array<uint8_t, 14> reserved = {};
  std::array<uint16_t, 16> bytes_a_row = {64, 64, 64, 64, 64, 64, 64, 64};
  std::array<uint8_t, 16> rows = {16, 16, 16, 16, 16, 16, 16, 16};
};
static_assert(sizeof(TileShapes) == 64);

// The sums of two left and two right tiles, 32 × 32 of them.
struct alignas(64) BandSums {
  std::array<float, 32 * 32> values;
};

void add_sums(const BandSums& sums, int64_t rows, int64_t columns, bool add, float* y,
              int64_t y_stride) {
  for (int64_t r = 0; r < rows; ++r)
    for (int64_t c = 0; c < columns; c += 16) {
      const __mmask16 mask = first(columns - c);
      float* to = y + r * y_stride + c;
      __m512 sum = _mm512_load_ps(sums.values.data() + r * 32 + c);
      if (add) sum = _mm512_add_ps(sum, _mm512_maskz_loadu_ps(mask, to));
      _mm512_mask_storeu_ps(to, mask, sum);
    }
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

// What two matrices are multiplied with: the pairs of parts that they have.
class TileProduct {
 public:
  TileProduct(const TileMatrix& left, const TileMatrix& right) : left_(left), right_(right) {
    for (const PartPair& pair : kPairs)
      if (pair.left < left.parts_ && pair.right < right.parts_) pairs_[count_++] = pair;
  }

  int64_t inner_blocks() const { return left_.inner_blocks_; }
  int64_t rows() const { return left_.source_.rows; }
  int64_t columns() const { return right_.source_.rows; }

  // Of one band each, from tile `begin` of the summed extent to `end`.
  void multiply(int64_t left_band, int64_t right_band, int64_t begin, int64_t end,
                BandSums& sums) const {
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
    for (int64_t k = begin; k < end; ++k) {
      const uint16_t *a = left_.tile(2 * left_band, k), *a_next = left_.tile(2 * left_band + 1, k);
      const uint16_t *b = right_.tile(2 * right_band, k),
                     *b_next = right_.tile(2 * right_band + 1, k);
      PartPair held = {-1, -1};
      for (int64_t i = 0; i < count_; ++i) {
        const PartPair pair = pairs_[i];
        if (pair.right != held.right) _tile_loadd(6, b + pair.right * kTile, 64);
        if (pair.left != held.left) _tile_loadd(4, a + pair.left * kTile, 64);
        _tile_dpbf16ps(0, 4, 6);
        if (pair.right != held.right) _tile_loadd(7, b_next + pair.right * kTile, 64);
        _tile_dpbf16ps(1, 4, 7);
        if (pair.left != held.left) _tile_loadd(5, a_next + pair.left * kTile, 64);
        held = pair;
        _tile_dpbf16ps(2, 5, 6);
        _tile_dpbf16ps(3, 5, 7);
      }
    }
    float* to = sums.values.data();
    _tile_stored(0, to, 128);
    _tile_stored(1, to + 16, 128);
    _tile_stored(2, to + 16 * 32, 128);
    _tile_stored(3, to + 16 * 32 + 16, 128);
  }

 private:
  const TileMatrix &left_, &right_;
  std::array<PartPair, kPairs.size()> pairs_ = {};
  int64_t count_ = 0;
};

void multiply_tiles(const TileMatrix& left, Bands left_bands, const TileMatrix& right,
                    Bands right_bands, bool add, float* y, int64_t y_stride) {
  constexpr int64_t kBand = TileMatrix::kBand;
  const TileProduct product(left, right);
  const TileShapes shapes;
  _tile_loadconfig(&shapes);
  BandSums sums;
  for (int64_t begin = 0; begin < product.inner_blocks(); begin += kBlocksAtOnce) {
    const int64_t end = std::min(begin + kBlocksAtOnce, product.inner_blocks());
    for (int64_t i = left_bands.begin; i < left_bands.end; ++i)
      for (int64_t j = right_bands.begin; j < right_bands.end; ++j) {
        product.multiply(i, j, begin, end, sums);
        add_sums(sums, std::min(kBand, product.rows() - i * kBand),
                 std::min(kBand, product.columns() - j * kBand), add || begin > 0,
                 y + i * kBand * y_stride + j * kBand, y_stride);
      }
  }
  _tile_release();
}

HWY_POP_ATTRIBUTES

#else

bool has_tile_products() {
  return false;
}

void TileMatrix::fill_band(int64_t) {
  fail("this processor has no products of tiles");
}

void multiply_tiles(const TileMatrix&, Bands, const TileMatrix&, Bands, bool, float*, int64_t) {
  fail("this processor has no products of tiles");
}

#endif

}  // namespace dofla::cpu
