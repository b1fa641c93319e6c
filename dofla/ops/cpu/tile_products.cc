#include "dofla/ops/cpu/tile_products.h"

#include <algorithm>
#include <array>

#include "dofla/core/error.h"
#include "dofla/ops/cpu/x86_intrinsics.h"

#if HWY_ARCH_X86_64
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace dofla::cpu {

#if HWY_ARCH_X86_64

namespace {

// So many tiles of the summed extent are multiplied before their sum joins y: with three parts a
// band of them, 48 KiB, nearly stays in the first cache.
constexpr int64_t kBlocksAtOnce = 24;

// Which parts of the two sides are multiplied: what is left out is below the last bit of float32.
// Neighbours share a side, whose tiles then stay where they are; the largest comes last.
struct PartPair {
  int64_t left, right;
};
constexpr std::array<PartPair, 6> kPairs = {{{2, 0}, {1, 0}, {1, 1}, {0, 1}, {0, 2}, {0, 0}}};

}  // namespace

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
  std::array<float, size_t{32} * 32> values;
};

void add_sums(const BandSums& sums, int64_t rows, int64_t columns, bool add, float* y,
              int64_t y_stride) {
  for (int64_t r = 0; r < rows; ++r)
    for (int64_t c = 0; c < columns; c += 16) {
      const auto mask = static_cast<__mmask16>((1u << std::min<int64_t>(columns - c, 16)) - 1);
      float* to = y + r * y_stride + c;
      __m512 sum = _mm512_load_ps(sums.values.data() + r * 32 + c);
      if (add) sum = _mm512_add_ps(sum, _mm512_maskz_loadu_ps(mask, to));
      _mm512_mask_storeu_ps(to, mask, sum);
    }
}

}  // namespace

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
        if (pair.right != held.right) _tile_loadd(6, b + pair.right * TileMatrix::kTile, 64);
        if (pair.left != held.left) _tile_loadd(4, a + pair.left * TileMatrix::kTile, 64);
        _tile_dpbf16ps(0, 4, 6);
        if (pair.right != held.right) _tile_loadd(7, b_next + pair.right * TileMatrix::kTile, 64);
        _tile_dpbf16ps(1, 4, 7);
        if (pair.left != held.left) _tile_loadd(5, a_next + pair.left * TileMatrix::kTile, 64);
        held = pair;
        _tile_dpbf16ps(2, 5, 6);
        _tile_dpbf16ps(3, 5, 7);
      }
    }
    float* to = sums.values.data();
    _tile_stored(0, to, 128);
    _tile_stored(1, to + 16, 128);
    _tile_stored(2, to + ptrdiff_t{16} * 32, 128);
    _tile_stored(3, to + ptrdiff_t{16} * 32 + 16, 128);
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

void multiply_tiles(const TileMatrix&, Bands, const TileMatrix&, Bands, bool, float*, int64_t) {
  fail("this processor has no products of tiles");
}

#endif

}  // namespace dofla::cpu
