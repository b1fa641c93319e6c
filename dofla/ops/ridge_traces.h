// What the degrees of freedom N_λ = J − λ tr(Σ+λI)⁻¹ of many heads are made of, on a GPU. There one
// factorisation a λ beats finding spectra; on the CPU the spectrum, which answers for every λ,
// costs about as much as one factorisation: dofla/dof/estimate.h.
#pragma once

#include <span>
#include <vector>

#include "dofla/core/tensor.h"
#include "dofla/ops/gram_scale.h"

namespace dofla {

struct RidgeTraces {
  // tr(Σ+λI)⁻¹, [N, number of λ]. NaN where Σ+λI is not positive definite in double precision: λ is
  // lost in the rounding, or Σ overflows.
  std::vector<double> inverse;
  std::vector<double> gram;  // tr Σ, [N]. NaN where a sample is not finite.
};

// Σ is formed from its logarithm, in float64 as all that follows. Each λ costs one factorisation
// and one inverse of a triangle, 2/3 J³ operations, and forms Σ anew: that is a tenth of the work,
// and to keep Σ would take twice the memory. Heads are worked on together, as many as fit the
// memory of the GPU. Waits for the result.
RidgeTraces ridge_traces(const Tensor& samples,  // [N, J, D], F32, on a GPU
                         GramScale scale, std::span<const double> lambdas);

// What a GPU has to implement; ops/ridge_traces.cc checks the arguments.
struct RidgeTracesBackend {
  decltype(&dofla::ridge_traces) ridge_traces;
};
namespace cuda {
extern const RidgeTracesBackend kRidgeTraces;
}

}  // namespace dofla
