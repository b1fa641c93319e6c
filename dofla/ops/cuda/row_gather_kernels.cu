#include "dofla/ops/cuda/head_rows.cuh"
#include "dofla/ops/cuda/row_gather_kernels.h"

namespace dofla::cuda {
namespace {

constexpr int kThreads = 256;

// Where a thread works: a unit of `columns` elements of row `row` of the index's order. A block has
// rows of one head of one sequence, so that few divisions are left.
struct Place {
  int row, column;
  int picked;  // the row that the index names, or −1, also beyond the last row
};

__device__ __forceinline__ Place place_of(const RowGatherShape& s, const int32_t* index,
                                          int columns) {
  const unsigned units = static_cast<unsigned>(s.width) / columns;
  const unsigned i = blockIdx.x * kThreads + threadIdx.x, row = i / units;
  if (row >= s.picked) return {-1, 0, -1};
  const unsigned index_head =
      blockIdx.y / (static_cast<unsigned>(s.heads) / static_cast<unsigned>(s.index_heads));
  const int64_t index_row =
      (s.index_batch == 1 ? 0 : int64_t{blockIdx.z}) * s.index_heads + index_head;
  return {static_cast<int>(row), static_cast<int>(i % units * columns),
          index[index_row * s.picked + row]};
}

template <class T, class Rows>
__device__ __forceinline__ auto element_at(const Rows& rows, int row, int column) {
  return head_of<T>(rows, blockIdx.z, blockIdx.y) + row * rows.token_step + column;
}

// A thread moves one Unit of kColumns elements, each of which has as many bytes as the type.
template <class Unit, class T>
__global__ void gather_units(RowGatherShape s, HeadRows x, const int32_t* __restrict__ index,
                             HeadRowsOut out) {
  const Place at = place_of(s, index, sizeof(Unit) / sizeof(T));
  if (at.row < 0) return;
  Unit unit = {};
  if (at.picked >= 0) unit = *reinterpret_cast<const Unit*>(element_at<T>(x, at.picked, at.column));
  *reinterpret_cast<Unit*>(element_at<T>(out, at.row, at.column)) = unit;
}

template <class T>
__global__ void add_elements(RowGatherShape s, HeadRows from, const int32_t* __restrict__ index,
                             HeadRowsOut to) {
  const Place at = place_of(s, index, 1);
  if (at.picked < 0) return;
  T* sum = element_at<T>(to, at.picked, at.column);
  *sum = from_float<T>(to_float(*sum) + to_float(*element_at<T>(from, at.row, at.column)));
}

template <class T>
__global__ void add_packs(RowGatherShape s, HeadRows from, const int32_t* __restrict__ index,
                          HeadRowsOut to) {
  const Place at = place_of(s, index, Pack<T>::kSize);
  if (at.picked < 0) return;
  T* sum = element_at<T>(to, at.picked, at.column);
  Pack<T> pack = load_pack(static_cast<const T*>(sum));
  const Pack<T> more = load_pack(element_at<T>(from, at.row, at.column));
#pragma unroll
  for (int e = 0; e < Pack<T>::kSize; ++e) pack.values[e] += more.values[e];
  store_pack(pack, sum);
}

dim3 grid_of(const RowGatherShape& s, int64_t columns) {
  return dim3(blocks_for(s.picked * (s.width / columns), kThreads), static_cast<unsigned>(s.heads),
              static_cast<unsigned>(s.batch));
}

bool valid(const RowGatherShape& s) {
  return s.index_heads >= 1 && s.heads % s.index_heads == 0 &&
         (s.index_batch == 1 || s.index_batch == s.batch);
}

}  // namespace

cudaError_t launch_gather_rows(const RowGatherShape& s, const HeadRows& x, const int32_t* index,
                               const HeadRowsOut& out, cudaStream_t stream) {
  if (!valid(s)) return cudaErrorInvalidValue;
  if (s.batch * s.heads * s.picked * s.width == 0) return cudaSuccess;
  const bool packed = in_packs(x, s.element, s.width) && in_packs(out, s.element, s.width);
  return with_type(s.element, [&](auto zero) {
    using T = decltype(zero);
    const dim3 blocks = grid_of(s, packed ? Pack<T>::kSize : 1);
    if (packed)
      gather_units<uint4, T><<<blocks, kThreads, 0, stream>>>(s, x, index, out);
    else
      gather_units<T, T><<<blocks, kThreads, 0, stream>>>(s, x, index, out);
  });
}

cudaError_t launch_add_rows(const RowGatherShape& s, const HeadRows& from, const int32_t* index,
                            const HeadRowsOut& to, cudaStream_t stream) {
  if (!valid(s)) return cudaErrorInvalidValue;
  if (s.batch * s.heads * s.picked * s.width == 0) return cudaSuccess;
  const bool packed = in_packs(from, s.element, s.width) && in_packs(to, s.element, s.width);
  return with_type(s.element, [&](auto zero) {
    using T = decltype(zero);
    const dim3 blocks = grid_of(s, packed ? Pack<T>::kSize : 1);
    if (packed)
      add_packs<T><<<blocks, kThreads, 0, stream>>>(s, from, index, to);
    else
      add_elements<T><<<blocks, kThreads, 0, stream>>>(s, from, index, to);
  });
}

}  // namespace dofla::cuda
