// The nonlinearities of the feed-forward layers, gated ones among them, and their derivatives; sums
// and products element by element.
#pragma once

#include "dofla/core/activation.h"
#include "dofla/core/tensor.h"

namespace dofla {

void activate(Activation activation, Tensor& x);
Tensor activated(Activation activation, const Tensor& x);  // elsewhere

// grad *= activation'(x), with x what the forward received; the shapes are equal.
void activate_backward(Activation activation, const Tensor& x, Tensor& grad);

// f(inner) · gated: what the last layer of a gated MLP receives. On a GPU, like the backward, one
// launch with the bits of activate() and multiply().
Tensor gate(Activation f, const Tensor& inner, const Tensor& gated);

// From the gradient of gate()'s result, whose memory is taken over, those of what it received;
// `result`, unless null, is that result again.
struct GateGradients {
  Tensor inner, gated;
};
GateGradients gate_backward(Activation f, const Tensor& inner, const Tensor& gated, Tensor grad,
                            Tensor* result);

void multiply(Tensor& x, const Tensor& y);                // x *= y, element by element
void add(Tensor& x, const Tensor& y);                     // x += y, element by element
void subtract(float factor, const Tensor& y, Tensor& x);  // x = factor · (x − y)
void scale(float factor, Tensor& x);                      // x *= factor

// What a device has to implement; ops/activation.cc checks the arguments and picks the device.
struct ActivationBackend {
  decltype(&dofla::activate) activate;
  decltype(&dofla::activate_backward) activate_backward;
  decltype(&dofla::multiply) multiply;
  decltype(&dofla::add) add;
  decltype(&dofla::subtract) subtract;
  decltype(&dofla::scale) scale;
  // Null where a device runs the parts one after the other. Without `gated` the result is f(inner).
  void (*gate)(Activation f, const Tensor& inner, const Tensor& gated, Tensor& result) = nullptr;
  // `grad` becomes that of inner; the result may be null.
  void (*gate_backward)(Activation f, const Tensor& inner, const Tensor& gated, Tensor& grad,
                        Tensor& grad_gated, Tensor* result) = nullptr;
};
namespace cpu {
extern const ActivationBackend kActivation;
}
namespace cuda {
extern const ActivationBackend kActivation;
}

}  // namespace dofla
