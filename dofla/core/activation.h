// The nonlinearities of feed-forward layers by name: configurations, operations and kernels share
// them.
#pragma once

namespace dofla {

enum class Activation {
  kGelu,      // x Φ(x), with the exact normal distribution function
  kGeluTanh,  // its tanh approximation ("gelu_new")
  kSilu,      // x / (1 + e⁻ˣ)
  kRelu,
};

}  // namespace dofla
