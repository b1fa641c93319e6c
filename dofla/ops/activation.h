// The nonlinearities of the feed-forward layers, in place, and their derivatives.
#pragma once

#include "dofla/core/tensor.h"

namespace dofla {

void gelu(Tensor& x);       // x Φ(x), with the exact normal distribution function
void gelu_tanh(Tensor& x);  // its tanh approximation ("gelu_new")
void silu(Tensor& x);       // x / (1 + e⁻ˣ)
void relu(Tensor& x);

// grad *= f'(x), with x what the forward received; the shapes are equal.
void gelu_backward(const Tensor& x, Tensor& grad);
void gelu_tanh_backward(const Tensor& x, Tensor& grad);
void silu_backward(const Tensor& x, Tensor& grad);
void relu_backward(const Tensor& x, Tensor& grad);

void multiply(Tensor& x, const Tensor& y);  // x *= y, element by element
void add(Tensor& x, const Tensor& y);       // x += y, element by element

}  // namespace dofla
