// Matrices as tiles of bf16, which tile_products.h multiplies.
#pragma once

#include <cstdint>
#include <vector>

#include "dofla/core/dtype.h"

namespace dofla::cpu {

// A matrix [rows, inner] in memory, of F32, F16 or BF16. One of the two steps, which count
// elements, is 1. The right matrix of a product is given transposed: its columns are the rows.
struct TileSource {
  const void* data = nullptr;
  DType dtype = DType::kF32;
  int64_t rows = 0, inner = 0;
  int64_t row_step = 0, inner_step = 0;
};

enum class TileSide { kLeft, kRight };

// A matrix as one side of a product takes it: cut into tiles of 16 rows and 32 of the summed
// extent, and every number into the bf16 numbers whose sum it is.
class TileMatrix {
 public:
  // Numbers of a tile, and rows that are filled and multiplied together: two tiles of 16.
  static constexpr int64_t kTile = int64_t{16} * 32, kBand = 32;

  // Takes memory for the source, or what it has if that is enough, and leaves the bands to be
  // filled, each by any thread.
  void reset(TileSide side, const TileSource& source);
  void fill_band(int64_t band);
  int64_t bands() const { return (source_.rows + kBand - 1) / kBand; }

 private:
  friend class TileProduct;
  uint16_t* tile(int64_t row_block, int64_t inner_block) const;
  template <class T>
  void fill_tile(int64_t row_block, int64_t inner_block) const;

  TileSide side_ = TileSide::kLeft;
  TileSource source_;
  int64_t parts_ = 1;         // bf16 numbers a number
  int64_t inner_blocks_ = 0;  // of 32
  std::vector<uint16_t> memory_;
  uint16_t* tiles_ = nullptr;  // [rows / 16][inner_blocks_][parts_][16 × 32], aligned to 64 bytes
};

// Fills all bands, on all cores.
void fill_bands(TileMatrix& matrix);

}  // namespace dofla::cpu
