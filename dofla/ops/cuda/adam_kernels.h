// The optimizer over many tensors in one launch. Their elements are cut into blocks of
// kSquaresBlock, and a table says which tensor a block is of.
#pragma once

#include "dofla/ops/adam_factors.h"
#include "dofla/ops/cuda/element.h"

namespace dofla::cuda {

// In the memory of the GPU.
template <class Row>
struct BlockTable {
  const Row* rows;         // [tensors]
  const uint32_t* firsts;  // [tensors]: the number of the first block of each
  int tensors;
  uint32_t blocks;
};

struct GradientRow {
  const float* gradient;
  int64_t count;
  bool in_packs;  // the address is a multiple of 16
};

struct AdamRow {
  const float* gradient;
  float* value;
  void *mean, *square;  // float, or bits of BF16
  uint16_t* copy;       // of the value, rounded to BF16; or null
  int64_t count;
  AdamFactors factors;
  AdamChance chance;
  bool in_packs;  // all addresses are multiples of 16
};

// sums[i] = Σ x² over block i, in double.
cudaError_t launch_block_squares(const BlockTable<GradientRow>& table, double* sums,
                                 cudaStream_t stream);
// norm = √Σ sums
cudaError_t launch_norm(uint32_t count, const double* sums, double* norm, cudaStream_t stream);

// One step of Adam, with gradients scaled to a norm of at most max_norm. Nothing changes if the
// norm is not finite; null: they are taken as they are.
cudaError_t launch_adam(const BlockTable<AdamRow>& table, Element moments, const double* norm,
                        double max_norm, cudaStream_t stream);

}  // namespace dofla::cuda
