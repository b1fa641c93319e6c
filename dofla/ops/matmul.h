// Dense layers: the only place where a model's large weights are read. Activations are F32 on the
// CPU; on a GPU they are in the type of the weights, BF16 or F32. Ids and targets stay on the CPU.
#pragma once

#include <optional>

#include "dofla/core/tensor.h"

namespace dofla {

// y = W x + bias. The weight keeps the type it has in the checkpoint (F32, F16 or BF16, on the CPU
// also scaled) and either of the two layouts that checkpoints use.
struct Linear {
  Tensor weight;  // [N, K], or [K, N] when input_major (GPT-2's Conv1D)
  bool input_major = false;
  Tensor bias;  // [N] in F32 (on a GPU in the type of the weight), or undefined

  int64_t inputs() const { return weight.size(input_major ? 0 : 1); }
  int64_t outputs() const { return weight.size(input_major ? 1 : 0); }
};

// Throw std::invalid_argument unless rows x [R, K] go with the layer, or with the accumulators of
// its gradients.
void require_fits(const Tensor& x, const Linear& linear);
void require_gradient_fits(const Tensor& x, const Linear& gradient);

// One row reads each weight once, at the speed of memory; many rows run at the speed of sgemm,
// converting smaller weights a cache-sized panel at a time. The result has the type of x unless
// another one is asked for (a GPU computes in BF16 and gives logits in F32).
Tensor matmul(const Tensor& x,       // [R, K]
              const Linear& linear,  // -> [R, N]
              std::optional<DType> result = std::nullopt);

// matmul(x, linear) + addend: on a GPU one fused kernel.
Tensor matmul_add(const Tensor& x,        // [R, K]
                  const Linear& linear,   // -> [R, N]
                  const Tensor& addend);  // [R, N]

// gelu_tanh(matmul(x, linear)): on a GPU one fused kernel. `inner`, unless null, receives what the
// activation received.
Tensor matmul_gelu_tanh(const Tensor& x,       // [R, K]
                        const Linear& linear,  // -> [R, N]
                        Tensor* inner);

// The layer read from its outputs to its inputs: the same weight, the other layout, no bias.
Linear transposed(const Linear& linear);

// The gradient of x in y = matmul(x, linear).
Tensor matmul_backward(const Tensor& grad_y,   // [R, N], F32
                       const Linear& linear);  // -> [R, K], F32

// The gradient of `inner` in y = matmul(gelu_tanh(inner), linear): on a GPU one fused kernel.
Tensor matmul_gelu_tanh_backward(const Tensor& grad_y,  // [R, N]
                                 const Linear& linear,  // -> [R, K]
                                 const Tensor& inner);  // [R, K]

// The gradients of weight and bias, added to a layer of F32 accumulators that is laid out like the
// one of the forward.
void add_weight_gradient(const Tensor& x,       // [R, K], F32
                         const Tensor& grad_y,  // [R, N], F32
                         Linear& gradient);

// What a device has to implement; ops/matmul.cc checks the arguments and picks the device.
struct MatmulBackend {
  void (*matmul)(const Tensor& x, const Linear& linear, Tensor& y);
  decltype(&dofla::add_weight_gradient) add_weight_gradient;

  // Fused products; null where a device has none, and the parts are run one after the other. The
  // last two need a multiple of `gelu_columns` columns.
  void (*matmul_add)(const Tensor& x, const Linear& linear, const Tensor& addend,
                     Tensor& y) = nullptr;
  void (*matmul_gelu_tanh)(const Tensor& x, const Linear& linear, Tensor& y,
                           Tensor* inner) = nullptr;
  // grad = gelu_tanh'(inner) · matmul(grad_y, back)
  void (*matmul_gelu_tanh_backward)(const Tensor& grad_y, const Linear& back, const Tensor& inner,
                                    Tensor& grad) = nullptr;
  int64_t gelu_columns = 1;
};
namespace cpu {
extern const MatmulBackend kMatmul;
}
namespace cuda {
extern const MatmulBackend kMatmul;
}

}  // namespace dofla
