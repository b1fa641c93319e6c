#include "dofla/dof/operator_norm.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include <cblas.h>
#include <lapacke.h>

#include "dofla/core/error.h"
#include "dofla/core/random.h"

namespace dofla {

double operator_norm(int64_t size, const SymmetricMap& map) {
  constexpr int64_t kMostSteps = 96;
  const auto n = static_cast<int>(size);
  std::vector<double> basis, diagonal, beside, image(static_cast<size_t>(size));
  Random random(0);
  for (double& x : image) x = random.normal();
  double length = cblas_dnrm2(n, image.data(), 1), largest = 0;
  for (int64_t step = 0; step < std::min(size, kMostSteps); ++step) {
    for (const double x : image) basis.push_back(x / length);
    const double* v = basis.data() + step * size;
    map(v, image.data());
    diagonal.push_back(cblas_ddot(n, v, 1, image.data(), 1));
    // Twice: what the first pass leaves of the earlier directions is of the size of its rounding.
    for (int pass = 0; pass < 2; ++pass)
      for (int64_t i = 0; i <= step; ++i) {
        const double* u = basis.data() + i * size;
        cblas_daxpy(n, -cblas_ddot(n, u, 1, image.data(), 1), u, 1, image.data(), 1);
      }
    length = cblas_dnrm2(n, image.data(), 1);
    if (!std::isfinite(length)) fail("the error of the features does not fit double precision");
    largest = std::max(largest, std::abs(diagonal.back()));
    // An invariant subspace: nothing of the start lies outside it.
    if (length <= 1e-14 * largest) break;
    beside.push_back(length);
  }
  beside.resize(diagonal.size());  // dsterf takes one less
  LAPACKE_dsterf(static_cast<lapack_int>(diagonal.size()), diagonal.data(), beside.data());
  return std::max(std::abs(diagonal.front()), std::abs(diagonal.back()));
}

}  // namespace dofla
