// Rows of heads as kernels see them, and the choice of a kernel by width.
#pragma once

#include <type_traits>

#include "dofla/ops/cuda/head_rows.h"
#include "dofla/ops/cuda/vector.cuh"

namespace dofla::cuda {

template <class T>
__device__ __forceinline__ const T* head_of(const HeadRows& rows, int64_t b, int64_t h) {
  return static_cast<const T*>(rows.data) + b * rows.batch_step + h * rows.head_step;
}

template <class T>
__device__ __forceinline__ T* head_of(const HeadRowsOut& rows, int64_t b, int64_t h) {
  return static_cast<T*>(rows.data) + b * rows.batch_step + h * rows.head_step;
}

// Whether every row begins at a multiple of 16 bytes and holds whole packs of them.
template <class Data>
bool in_packs(const RowsAt<Data>& rows, Element element, int64_t width) {
  const int64_t pack = element == Element::kF32 ? 4 : 8;
  return (rows.batch_step | rows.head_step | rows.token_step | width) % pack == 0 &&
         aligned_to_packs(rows.data);
}

// Calls body(integral_constant) with the narrowest width that kernels are made for.
template <class Body>
cudaError_t with_width(int64_t width, const Body& body) {
  if (width < 1 || width > kWidestHead) return cudaErrorInvalidValue;
  if (width <= 32) return body(std::integral_constant<int, 32>());
  if (width <= 64) return body(std::integral_constant<int, 64>());
  return body(std::integral_constant<int, 128>());
}

}  // namespace dofla::cuda
