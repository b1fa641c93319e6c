// Products of float32 accuracy from products of bf16 tiles, where the processor has them (Intel's
// AMX): several times as fast as its float32 products. docs/kernels.md, "Tiles of bf16".
#pragma once

#include <cstdint>

#include "dofla/ops/cpu/tile_matrix.h"

namespace dofla::cpu {

// Whether the processor has tile products and the system lets this process use them.
bool has_tile_products();

// Bands [begin, end) of a side.
struct Bands {
  int64_t begin = 0, end = 0;
};

// y = left · rightᵀ for some bands of both, or y += that, on the calling thread. The order of the
// sums depends on their length alone. y is that of all bands; its rows are y_stride apart.
void multiply_tiles(const TileMatrix& left, Bands left_bands, const TileMatrix& right,
                    Bands right_bands, bool add, float* y, int64_t y_stride);

}  // namespace dofla::cpu
