// Traces of ridge inverses on a GPU; arguments are checked by ops/ridge_traces.cc.
#pragma once

#include "dofla/ops/ridge_traces.h"

namespace dofla::cuda {

RidgeTraces ridge_traces(const Tensor& samples, GramScale scale, std::span<const double> lambdas);

}  // namespace dofla::cuda
