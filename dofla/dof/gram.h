// The Gram matrix of the attention kernel K(x, y) = exp(x·y/√D) over the samples of one head. K
// reaches e¹⁰⁰ and more in real models, so every entry is formed from its logarithm: the scale is
// subtracted before the exponential.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "dofla/core/names.h"
#include "dofla/core/tensor.h"
#include "dofla/ops/gram_scale.h"

namespace dofla {

template <>
struct Names<GramScale> {
  static constexpr std::string_view kWhat = "Gram scale";
  static constexpr std::array kAll = {
      Name{GramScale::kTrace, "trace"}, Name{GramScale::kMax, "max"},
      Name{GramScale::kSamples, "samples"}, Name{GramScale::kNone, "none"}};
};

// A symmetric positive semi-definite matrix whose entries are computed when asked for.
struct PsdMatrix {
  int64_t size = 0;
  std::vector<double> diagonal;
  // Rows [first_row, size) of the columns in `which`, one column after the other, `stride` apart.
  std::function<void(std::span<const int64_t> which, int64_t first_row, double* out,
                     int64_t stride)>
      columns;
};

// The samples on which K is x·y, and the logarithm of the factor of K.
struct KernelSamples {
  int64_t count = 0;                 // J
  int64_t width = 0;                 // D
  std::vector<double> rows;          // [J, D]: x / D^¼, so that log K(x, y) is their inner product
  std::vector<double> log_diagonal;  // log K(x, x)
  double log_factor = 0;             // Σ = exp(log_factor) · K
};

// The rows divided by D^¼, in double precision.
std::vector<double> kernel_rows(const Tensor& rows);  // [·, D], F32 or F64

// Throws Error if a sample is not finite, or if Σ with this scale does not fit double precision.
KernelSamples kernel_samples(const Tensor& samples,  // [J, D], F32 or F64
                             GramScale scale);

// Σ, which keeps a copy of the samples.
PsdMatrix gram_matrix(KernelSamples samples);

// The lower triangle of the matrix, column-major, [size, size]; what is above it is unspecified.
std::vector<double> lower_triangle(const PsdMatrix& matrix);

}  // namespace dofla
