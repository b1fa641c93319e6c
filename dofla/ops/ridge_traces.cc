#include "dofla/ops/ridge_traces.h"

#include <cmath>

namespace dofla {

RidgeTraces ridge_traces(const Tensor& samples, GramScale scale, std::span<const double> lambdas) {
  require(samples.device().is_cuda(), "ridge_traces: samples must be on a GPU");
  require(samples.rank() == 3 && samples.count() > 0 && samples.dtype() == DType::kF32,
          "ridge_traces: expected F32 samples [N, J, D], found {} {}", name(samples.dtype()),
          to_string(samples.shape()));
  for (const double lambda : lambdas)
    require(lambda > 0 && std::isfinite(lambda), "λ: expected a positive number, found {}", lambda);
  return cuda::kRidgeTraces.ridge_traces(samples, scale, lambdas);
}

}  // namespace dofla
