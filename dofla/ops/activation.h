// The nonlinearities of the feed-forward layers, in place.
#pragma once

#include "dofla/core/tensor.h"

namespace dofla {

void gelu(Tensor& x);       // x Φ(x), with the exact normal distribution function
void gelu_tanh(Tensor& x);  // its tanh approximation ("gelu_new")
void silu(Tensor& x);       // x / (1 + e⁻ˣ)
void relu(Tensor& x);

void multiply(Tensor& x, const Tensor& y);  // x *= y, element by element
void add(Tensor& x, const Tensor& y);       // x += y, element by element

}  // namespace dofla
