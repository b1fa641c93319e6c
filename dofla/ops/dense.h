// A dense layer with what stands around it. All of a decoder's large weights are read here.
#pragma once

#include <optional>

#include "dofla/core/activation.h"
#include "dofla/ops/matmul.h"

namespace dofla {

// activation(W norm(x) + bias) · factor + residual.
struct Dense {
  // A layer norm, or with centre = false an RMS norm, of the rows that the layer takes.
  struct Norm {
    Tensor weight;  // [K], F32; undefined: no norm
    Tensor bias;    // [K], F32, or undefined
    double epsilon = 0;
    bool centre = true;
  };

  Linear linear;
  Norm norm = {};
  std::optional<Activation> activation = {};
  Tensor factor = {};    // [R, N], or undefined
  Tensor residual = {};  // [R, N], or undefined
};

Tensor normalise(const Dense::Norm& norm,
                 const Tensor& x);  // [R, K] -> [R, K]; x itself without a norm

// The result has the type of x unless another one is asked for. `product`, unless null, receives
// W norm(x) + bias for a backward; there is no factor then, and without an activation or a residual
// the result is the same memory.
// On a GPU up to eight rows in BF16 read a weight [N, K] once, at the speed of memory, and are
// rounded only at the end. Such launches overlap with the one ahead of them.
Tensor dense(const Tensor& x,  // [R, K] -> [R, N]
             const Dense& layer, std::optional<DType> result = std::nullopt,
             Tensor* product = nullptr);

// Whether dense(x, layer) is that single launch, which computes the norm for itself. Otherwise
// several layers of the same rows do well to share the norm.
bool is_single_launch(const Tensor& x, const Dense& layer);

// dense(x, layer) from normalise(layer.norm, x).
Tensor dense_after_norm(const Tensor& normal,  // [R, K] -> [R, N]
                        const Dense& layer, std::optional<DType> result = std::nullopt,
                        Tensor* product = nullptr);

// What a GPU has to implement for a few rows; ops/dense.cc checks the arguments.
struct FewRowBackend {
  bool (*takes)(const Tensor& x, const Dense& layer);
  void (*run)(const Tensor& x, const Dense& layer, Tensor& y);
};
namespace cuda {
extern const FewRowBackend kFewRow;
}  // namespace cuda

}  // namespace dofla
