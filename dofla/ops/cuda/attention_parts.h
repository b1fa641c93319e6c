// Attention computed in parts that are merged afterwards: keys or features of one head divided
// among several blocks, and query heads that share a key head.
#pragma once

#include "dofla/ops/cuda/head_rows.h"

namespace dofla::cuda {

// Head h owns the parts [first[h], first[h + 1]).
struct PartTable {
  int32_t first[kMostHeads + 1];
};

struct PartShape {
  Element element;  // of the result
  int64_t batch, heads, parts, tokens, width;
};

// Outputs of attention over disjoint sets of keys or features, weighted with what each set sums to:
//   out = Σ_p exp(log_p − log) part_p,   log = log Σ_p exp(log_p).
// A part that saw nothing has a log of −∞.
cudaError_t launch_merge_parts(const PartShape& shape, const PartTable& table,
                               const float* parts,  // [B, P, T, D]
                               const float* logs,   // [B, P, T]
                               const HeadRowsOut& out,
                               float* log_sum,  // [B, H, T], or null
                               cudaStream_t stream);

// out = Σ_p part_p, in order.
cudaError_t launch_sum_parts(const PartShape& shape, const PartTable& table,
                             const float* parts,  // [B, P, T, D]
                             const HeadRowsOut& out, cudaStream_t stream);

// dots[b, h, t] = x_t · y_t, in float32.
cudaError_t launch_row_dots(const PartShape& shape,  // `element` is that of x and y
                            const HeadRows& x, const HeadRows& y,
                            float* dots,  // [B, H, T]
                            cudaStream_t stream);

}  // namespace dofla::cuda
