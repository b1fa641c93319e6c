// The nonlinearities of feed-forward layers by name, for kernels as for everyone else.
#pragma once

namespace dofla {

enum class Nonlinearity { kGelu, kGeluTanh, kSilu, kRelu };  // kGelu is the exact, erf-based one

}  // namespace dofla
