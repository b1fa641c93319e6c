// The element types that GPU kernels work on. Arithmetic is in float32 whatever the type.
#pragma once

#include <cstdint>

#include <cuda_runtime.h>

namespace dofla::cuda {

enum class Element { kF32, kBF16 };

}  // namespace dofla::cuda
