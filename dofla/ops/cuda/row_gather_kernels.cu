#include "dofla/ops/cuda/head_rows.cuh"
#include "dofla/ops/cuda/row_gather_kernels.h"

namespace dofla::cuda {
namespace {

constexpr int kThreads = 256;

// Where thread i works: a unit of `columns` elements of row `row` of the index's order.
struct Place {
  int64_t b, head, row, column;
  int picked;  // the row that the index names, or −1
};

__device__ __forceinline__ Place place_of(const RowGatherShape& s, const int32_t* index, int64_t i,
                                          int columns) {
  const int64_t units = s.width / columns;
  Place at;
  at.column = i % units * columns;
  i /= units;
  at.row = i % s.picked;
  i /= s.picked;
  at.head = i % s.heads;
  at.b = i / s.heads;
  const int64_t index_head = at.head / (s.heads / s.index_heads);
  const int64_t index_row = (s.index_batch == 1 ? 0 : at.b) * s.index_heads + index_head;
  at.picked = index[index_row * s.picked + at.row];
  return at;
}

// A thread moves one Unit of kColumns elements, each of which has as many bytes as the type.
template <class Unit, class T>
__global__ void gather_units(RowGatherShape s, HeadRows x, const int32_t* __restrict__ index,
                             HeadRowsOut out, int64_t count) {
  constexpr int kColumns = sizeof(Unit) / sizeof(T);
  const int64_t i = blockIdx.x * int64_t{kThreads} + threadIdx.x;
  if (i >= count) return;
  const Place at = place_of(s, index, i, kColumns);
  Unit unit = {};
  if (at.picked >= 0)
    unit = *reinterpret_cast<const Unit*>(head_of<T>(x, at.b, at.head) + at.picked * x.token_step +
                                          at.column);
  *reinterpret_cast<Unit*>(head_of<T>(out, at.b, at.head) + at.row * out.token_step + at.column) =
      unit;
}

template <class T>
__global__ void add_elements(RowGatherShape s, HeadRows from, const int32_t* __restrict__ index,
                             HeadRowsOut to, int64_t count) {
  const int64_t i = blockIdx.x * int64_t{kThreads} + threadIdx.x;
  if (i >= count) return;
  const Place at = place_of(s, index, i, 1);
  if (at.picked < 0) return;
  T* sum = head_of<T>(to, at.b, at.head) + at.picked * to.token_step + at.column;
  const T* more = head_of<T>(from, at.b, at.head) + at.row * from.token_step + at.column;
  *sum = from_float<T>(to_float(*sum) + to_float(*more));
}

template <class T>
__global__ void add_packs(RowGatherShape s, HeadRows from, const int32_t* __restrict__ index,
                          HeadRowsOut to, int64_t count) {
  const int64_t i = blockIdx.x * int64_t{kThreads} + threadIdx.x;
  if (i >= count) return;
  const Place at = place_of(s, index, i, Pack<T>::kSize);
  if (at.picked < 0) return;
  T* sum = head_of<T>(to, at.b, at.head) + at.picked * to.token_step + at.column;
  Pack<T> pack = load_pack(static_cast<const T*>(sum));
  const Pack<T> more =
      load_pack(head_of<T>(from, at.b, at.head) + at.row * from.token_step + at.column);
#pragma unroll
  for (int e = 0; e < Pack<T>::kSize; ++e) pack.values[e] += more.values[e];
  store_pack(pack, sum);
}

bool valid(const RowGatherShape& s) {
  return s.index_heads >= 1 && s.heads % s.index_heads == 0 &&
         (s.index_batch == 1 || s.index_batch == s.batch);
}

}  // namespace

cudaError_t launch_gather_rows(const RowGatherShape& s, const HeadRows& x, const int32_t* index,
                               const HeadRowsOut& out, cudaStream_t stream) {
  if (!valid(s)) return cudaErrorInvalidValue;
  const int64_t elements = s.batch * s.heads * s.picked * s.width;
  if (elements == 0) return cudaSuccess;
  const bool packed = in_packs(x, s.element, s.width) && in_packs(out, s.element, s.width);
  return with_type(s.element, [&](auto zero) {
    using T = decltype(zero);
    const int64_t count = packed ? elements / Pack<T>::kSize : elements;
    const unsigned blocks = blocks_for(count, kThreads);
    if (packed)
      gather_units<uint4, T><<<blocks, kThreads, 0, stream>>>(s, x, index, out, count);
    else
      gather_units<T, T><<<blocks, kThreads, 0, stream>>>(s, x, index, out, count);
  });
}

cudaError_t launch_add_rows(const RowGatherShape& s, const HeadRows& from, const int32_t* index,
                            const HeadRowsOut& to, cudaStream_t stream) {
  if (!valid(s)) return cudaErrorInvalidValue;
  const int64_t elements = s.batch * s.heads * s.picked * s.width;
  if (elements == 0) return cudaSuccess;
  const bool packed = in_packs(from, s.element, s.width) && in_packs(to, s.element, s.width);
  return with_type(s.element, [&](auto zero) {
    using T = decltype(zero);
    const int64_t count = packed ? elements / Pack<T>::kSize : elements;
    const unsigned blocks = blocks_for(count, kThreads);
    if (packed)
      add_packs<T><<<blocks, kThreads, 0, stream>>>(s, from, index, to, count);
    else
      add_elements<T><<<blocks, kThreads, 0, stream>>>(s, from, index, to, count);
  });
}

}  // namespace dofla::cuda
