// The nonlinearities of the feed-forward layers, in place, and their derivatives; sums and products
// element by element.
#pragma once

#include "dofla/core/activation.h"
#include "dofla/core/tensor.h"

namespace dofla {

void activate(Activation activation, Tensor& x);

// grad *= activation'(x), with x what the forward received; the shapes are equal.
void activate_backward(Activation activation, const Tensor& x, Tensor& grad);

void multiply(Tensor& x, const Tensor& y);                // x *= y, element by element
void add(Tensor& x, const Tensor& y);                     // x += y, element by element
void subtract(float factor, const Tensor& y, Tensor& x);  // x = factor · (x − y)

// What a device has to implement; ops/activation.cc checks the arguments and picks the device.
struct ActivationBackend {
  decltype(&dofla::activate) activate;
  decltype(&dofla::activate_backward) activate_backward;
  decltype(&dofla::multiply) multiply;
  decltype(&dofla::add) add;
  decltype(&dofla::subtract) subtract;
};
namespace cpu {
extern const ActivationBackend kActivation;
}
namespace cuda {
extern const ActivationBackend kActivation;
}

}  // namespace dofla
