// Where attention kernels find the rows of D elements of every sequence, head and token.
#pragma once

#include <cstdint>

#include "dofla/ops/cuda/element.h"

namespace dofla::cuda {

// Steps count elements; the D elements of a row lie side by side. Kernels read 16 bytes at a time
// where data, D and steps are multiples of that, and element by element where not.
template <class Data>
struct RowsAt {
  Data* data;
  int64_t batch_step, head_step, token_step;
};

using HeadRows = RowsAt<const void>;
using HeadRowsOut = RowsAt<void>;

// [B, H, T, D], where T counts reserved rows too.
template <class Data>
RowsAt<Data> heads_then_tokens(Data* data, int64_t heads, int64_t tokens, int64_t width) {
  return {data, heads * tokens * width, tokens * width, width};
}

// [B, T, H, D]
template <class Data>
RowsAt<Data> tokens_then_heads(Data* data, int64_t heads, int64_t tokens, int64_t width) {
  return {data, heads * tokens * width, width, heads * width};
}

// Kernels carry tables with an entry a head.
constexpr int kMostHeads = 256;
// The widest head.
constexpr int kWidestHead = 128;

}  // namespace dofla::cuda
