// Element by element: nonlinearities and their derivatives, sums, products, rounding.
#pragma once

#include "dofla/core/activation.h"
#include "dofla/ops/cuda/element.h"

namespace dofla::cuda {

// x = f(x)
cudaError_t launch_activation(Activation f, Element element, int64_t count, void* x,
                              cudaStream_t stream);
// gradient *= f'(x)
cudaError_t launch_activation_backward(Activation f, Element element, int64_t count, const void* x,
                                       void* gradient, cudaStream_t stream);
// result = f(inner) · gated; null: f(inner)
cudaError_t launch_gate(Activation f, Element element, int64_t count, const void* inner,
                        const void* gated, void* result, cudaStream_t stream);
// From the gradient of that result those of inner, in its place, and gated; and, unless null, the
// result itself.
cudaError_t launch_gate_backward(Activation f, Element element, int64_t count, const void* inner,
                                 const void* gated, void* gradient, void* gradient_gated,
                                 void* result, cudaStream_t stream);
// x += y, x *= y
cudaError_t launch_add(Element element, int64_t count, const void* y, void* x, cudaStream_t stream);
cudaError_t launch_multiply(Element element, int64_t count, const void* y, void* x,
                            cudaStream_t stream);

// x = factor · (x − y)
cudaError_t launch_subtract(float factor, Element element, int64_t count, const void* y, void* x,
                            cudaStream_t stream);

// x *= factor
cudaError_t launch_scale(float factor, Element element, int64_t count, void* x,
                         cudaStream_t stream);

// y = x, rounded to the type of y
cudaError_t launch_round(int64_t count, const float* x, void* y, Element element,
                         cudaStream_t stream);

}  // namespace dofla::cuda
