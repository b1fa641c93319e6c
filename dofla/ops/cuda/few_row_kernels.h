// Dense layers of a few rows, as decoding has them. One launch reads the weights once, at the speed
// of memory, and does what stands around the product as well:
//   y = f(norm(x) W + bias) · factor + residual.
// Arithmetic is in float32, and nothing is rounded to bf16 before y. The same input gives the same
// bits. The launch overlaps with the one ahead of it (overlap.cuh): weights are on their way before
// x is there.
#pragma once

#include "dofla/ops/cuda/element_kernels.h"

namespace dofla::cuda {

constexpr int64_t kFewRows = 8;

// A layer norm, or with centre = false an RMS norm.
struct RowNorm {
  const float* weight;  // [inputs]; null: no norm
  const float* bias;    // [inputs], or null
  float epsilon;
  bool centre;
};

struct FewRowProduct {
  int64_t rows, inputs, outputs;
  const void* x;       // [rows, inputs], bf16
  RowNorm norm;        // of x
  const void* weight;  // [outputs, inputs], bf16
  const void* bias;    // [outputs], bf16, or null
  bool nonlinear;
  Activation f;          // where nonlinear
  const void* factor;    // [rows, outputs], bf16, or null
  const void* residual;  // [rows, outputs], bf16, or null
  void* y;               // [rows, outputs]
  Element y_element;
};

// Whether there are few enough rows, which fit a multiprocessor, and whole packs of eight
// inputs. x and weight must lie at multiples of 16 bytes.
bool few_rows_fit(int64_t rows, int64_t inputs, int64_t outputs, bool with_norm);

cudaError_t launch_few_row_product(const FewRowProduct& product, cudaStream_t stream);

}  // namespace dofla::cuda
