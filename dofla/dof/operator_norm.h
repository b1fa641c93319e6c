// The norm of a symmetric matrix that is known by what it does to vectors.
#pragma once

#include <cstdint>
#include <functional>

namespace dofla {

// image = A v, both of `size` numbers.
using SymmetricMap = std::function<void(const double* v, double* image)>;

// The largest absolute eigenvalue, by Lanczos' method with full reorthogonalisation, which finds
// the ends of a spectrum first: exact up to rounding where size ≤ 96, never above the norm
// elsewhere and below it by far less than what a number of features changes.
double operator_norm(int64_t size, const SymmetricMap& map);

}  // namespace dofla
