// Element by element: nonlinearities and their derivatives, sums, products, the optimizer.
#pragma once

#include "dofla/core/activation.h"
#include "dofla/ops/adam_factors.h"
#include "dofla/ops/cuda/element.h"

namespace dofla::cuda {

// x = f(x)
cudaError_t launch_activation(Activation f, Element element, int64_t count, void* x,
                              cudaStream_t stream);
// gradient *= f'(x)
cudaError_t launch_activation_backward(Activation f, Element element, int64_t count, const void* x,
                                       void* gradient, cudaStream_t stream);
// x += y, x *= y
cudaError_t launch_add(Element element, int64_t count, const void* y, void* x, cudaStream_t stream);
cudaError_t launch_multiply(Element element, int64_t count, const void* y, void* x,
                            cudaStream_t stream);

// x *= factor
// x = factor · (x − y)
cudaError_t launch_subtract(float factor, Element element, int64_t count, const void* y, void* x,
                            cudaStream_t stream);
cudaError_t launch_scale(float factor, int64_t count, float* x, cudaStream_t stream);

// y = x, rounded to the type of y
cudaError_t launch_round(int64_t count, const float* x, void* y, Element element,
                         cudaStream_t stream);

// Parts of Σ x² in double, always the same for the same x; `sums` takes kSquareSums of them.
constexpr int kSquareSums = 256;
cudaError_t launch_sum_squares(int64_t count, const float* x, double* sums, cudaStream_t stream);

// One step of Adam on float32 parameters.
cudaError_t launch_adam(const AdamFactors& factors, int64_t count, const float* gradient,
                        float* mean, float* square, float* parameter, cudaStream_t stream);
// The same with moments in BF16, rounded by chance.
cudaError_t launch_adam_in_bf16(const AdamFactors& factors, const AdamChance& chance, int64_t count,
                                const float* gradient, uint16_t* mean, uint16_t* square,
                                float* parameter, cudaStream_t stream);

}  // namespace dofla::cuda
