// Normalisation of rows.
#pragma once

#include "dofla/core/tensor.h"

namespace dofla {

// (x − mean) / √(variance + epsilon) · weight + bias, over the last axis.
Tensor layer_norm(const Tensor& x,       // [..., C], F32
                  const Tensor& weight,  // [C], F32
                  const Tensor& bias,    // [C], F32, or undefined
                  double epsilon);

// x / √(mean(x²) + epsilon) · weight, over the last axis.
Tensor rms_norm(const Tensor& x,       // [..., C], F32
                const Tensor& weight,  // [C], F32
                double epsilon);

// Gradients of the two: grad_x from grad_y, both shaped like x, and added to `addend` unless that
// is undefined: what comes past the norm. The gradients of weight and bias, [C] in F32, are added
// to what is given for them; null where they are not wanted.
Tensor layer_norm_backward(const Tensor& x,       // [..., C], F32
                           const Tensor& weight,  // [C], F32
                           double epsilon,
                           const Tensor& grad_y,  // [..., C], F32
                           Tensor* grad_weight, Tensor* grad_bias,
                           const Tensor& addend = Tensor());  // [..., C]
Tensor rms_norm_backward(const Tensor& x,                     // [..., C], F32
                         const Tensor& weight,                // [C], F32
                         double epsilon,
                         const Tensor& grad_y,  // [..., C], F32
                         Tensor* grad_weight,
                         const Tensor& addend = Tensor());  // [..., C]

// What a device has to implement; ops/norm.cc checks the arguments and picks the device.
struct NormForward {
  void (*layer_norm)(const Tensor& x, const Tensor& weight, const Tensor& bias, double epsilon,
                     Tensor& y);
  void (*rms_norm)(const Tensor& x, const Tensor& weight, double epsilon, Tensor& y);
};
struct NormBackward {
  void (*layer_norm)(const Tensor& x, const Tensor& weight, double epsilon, const Tensor& grad_y,
                     const Tensor& addend, Tensor& grad_x, Tensor* grad_weight, Tensor* grad_bias);
  void (*rms_norm)(const Tensor& x, const Tensor& weight, double epsilon, const Tensor& grad_y,
                   const Tensor& addend, Tensor& grad_x, Tensor* grad_weight);
};
namespace cpu {
extern const NormForward kNorm;
extern const NormBackward kNormBackward;
}  // namespace cpu
namespace cuda {
extern const NormForward kNorm;
extern const NormBackward kNormBackward;
}  // namespace cuda

}  // namespace dofla
