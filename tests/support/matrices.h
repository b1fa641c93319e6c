// Random vectors and matrices with a known spectrum.
#pragma once

#include <cstdint>
#include <vector>

#include "dofla/core/tensor.h"
#include "dofla/dof/gram.h"

namespace dofla::test {

Tensor gaussian(const Shape& shape, double scale, uint64_t seed);

// A matrix given by all its entries, [size, size].
PsdMatrix explicit_matrix(std::vector<double> entries, int64_t size);

// Q diag(spectrum) Qᵀ with a random orthogonal Q.
PsdMatrix with_spectrum(const std::vector<double>& spectrum, uint64_t seed);

}  // namespace dofla::test
