// From tensors to what kernels take.
#pragma once

#include "dofla/core/device_cuda.h"
#include "dofla/core/tensor.h"
#include "dofla/ops/cuda/element.h"
#include "dofla/ops/features.h"

namespace dofla::cuda {

inline Element element_of(const Tensor& x) {
  if (x.dtype() == DType::kBF16) return Element::kBF16;
  require(x.dtype() == DType::kF32, "GPU operations take F32 and BF16, found {}", name(x.dtype()));
  return Element::kF32;
}

inline cudaStream_t stream_of(const Tensor& x) {
  return x.device().context().stream();
}

// Of a tensor that is not defined too.
inline bool is_bf16(const Tensor& x) {
  return !x.defined() || x.dtype() == DType::kBF16;
}
// Kernels that take 16 bytes at a time want rows to begin at multiples of them.
inline bool begins_at_pack(const Tensor& x) {
  return !x.defined() || reinterpret_cast<uintptr_t>(x.raw()) % 16 == 0;
}

// The address of float32 elements, or null for a tensor that is not defined.
inline const float* floats(const Tensor& x) {
  require(!x.defined() || x.dtype() == DType::kF32, "expected F32, found {}", name(x.dtype()));
  return static_cast<const float*>(x.raw());
}
// The same of 64-bit integers.
inline const int64_t* integers(const Tensor& x) {
  require(!x.defined() || (x.dtype() == DType::kI64 && x.device().is_cuda()),
          "expected I64 on the GPU, found {}", name(x.dtype()));
  return static_cast<const int64_t*>(x.raw());
}
// The same of 32-bit integers.
inline const int32_t* short_integers(const Tensor& x) {
  require(!x.defined() || (x.dtype() == DType::kI32 && x.device().is_cuda()),
          "expected I32 on the GPU, found {}", name(x.dtype()));
  return static_cast<const int32_t*>(x.raw());
}
inline float* mutable_floats(Tensor& x) {
  require(x.dtype() == DType::kF32, "expected F32, found {}", name(x.dtype()));
  return x.defined() ? static_cast<float*>(x.mutable_raw()) : nullptr;
}

// Space for the gradients of features.
inline FeatureGradients gradients_like(const Features& features) {
  const auto like = [](const Tensor& x) {
    return x.defined() ? Tensor(x.shape(), x.dtype(), x.device()) : Tensor();
  };
  return {like(features.z), like(features.log_alpha), like(features.u), like(features.norm_weight)};
}

}  // namespace dofla::cuda
