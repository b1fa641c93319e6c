// The features of one layer: each query head has its own, and its own number of them.
#pragma once

#include <cstdint>
#include <vector>

#include "dofla/core/tensor.h"

namespace dofla {

struct Features {
  std::vector<int64_t> counts;  // M of every query head, each at least 1
  Tensor z;                     // [ΣM, D], F32; head after head
  Tensor log_alpha;             // [ΣM], F32
  bool subtract_norm = true;    // whether log φ̃ has its term −|x|²/(2√d); DiJiang's has not
  Tensor gpu_offsets = {};      // offsets() for kernels, [H + 1] in I64; undefined on the CPU

  bool empty() const { return counts.empty(); }  // no features: other attention than linear
  int64_t heads() const { return static_cast<int64_t>(counts.size()); }
  int64_t total() const;                    // ΣM
  std::vector<int64_t> offsets() const;     // first feature of every head, then ΣM: H + 1 values
  Features to(const Device& device) const;  // itself if it is there already
};

// Throws std::invalid_argument unless counts, z and log_alpha fit each other and the head width D.
void require_valid(const Features& features, int64_t width);

// Throws std::invalid_argument unless `x` is [B, X, T, D] in F32 (on a GPU also BF16) with X a
// divisor of the number of query heads: query head h then reads head h / (H / X) of x. Also checks
// the features.
void require_heads(const Tensor& x, const Features& features, const char* what);

}  // namespace dofla
