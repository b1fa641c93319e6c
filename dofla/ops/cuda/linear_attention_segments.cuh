// From the sums of every segment of a sequence to those of all that lies before each.
#pragma once

#include "dofla/ops/cuda/linear_attention_kernels.h"
#include "dofla/ops/cuda/vector.cuh"

namespace dofla::cuda {

// The sums of each segment alone become the sums of all that lies before it; `sums` is what lies
// before the first and becomes what the next token will see. A block a feature, a thread a
// coordinate.
static __global__ void accumulate_segments(LinearAttentionSums of, LinearAttentionSums before,
                                           LinearAttentionSums sums, int segments, int64_t width) {
  const int64_t m = blockIdx.x, total = gridDim.x, b = blockIdx.y, d = threadIdx.x;
  const int64_t own = b * total + m;
  const bool begun = sums.log_max != nullptr, valid = d < width;
  float peak = begun ? sums.log_max[own] : -INFINITY, a = begun ? sums.a[own] : 0.0f;
  float value = begun && valid ? sums.b[own * width + d] : 0.0f;
  for (int s = 0; s < segments; ++s) {
    const int64_t at = (b * segments + s) * total + m;
    if (d == 0) before.log_max[at] = peak, before.a[at] = a;
    if (valid) before.b[at * width + d] = value;
    if (of.log_max[at] == -INFINITY) continue;  // a head without tokens so late
    const float top = fmaxf(peak, of.log_max[at]);
    const float old = fast_exp(peak - top), fresh = fast_exp(of.log_max[at] - top);
    a = a * old + of.a[at] * fresh;
    if (valid) value = value * old + of.b[at * width + d] * fresh;
    peak = top;
  }
  __syncthreads();  // every thread has read what the first one now writes
  if (!begun) return;
  if (valid) sums.b[own * width + d] = value;
  if (d == 0) sums.log_max[own] = peak, sums.a[own] = a;
}

}  // namespace dofla::cuda
