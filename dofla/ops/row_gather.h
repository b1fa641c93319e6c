// Rows of heads in another order, and back.
#pragma once

#include "dofla/core/tensor.h"

namespace dofla {

// Row r of the result is row index[…, r] of x, or zeros where that is −1. The index of a head
// serves X / Hi heads of x, that of a single sequence all sequences. x may be a view.
// Returns [B, X, n, D].
Tensor gather_rows(const Tensor& x,       // [B, X, N, D]
                   const Tensor& index);  // [B or 1, Hi, n] I32, on the same device

// The adjoint: row r of `from` is added to row index[…, r] of `to`; −1 goes nowhere. No row may be
// named twice. `to` may be a view.
void add_rows(const Tensor& from,   // [B, X, n, D]
              const Tensor& index,  // [B or 1, Hi, n] I32
              Tensor& to);          // [B, X, N, D]

// What a device has to implement; ops/row_gather.cc checks the arguments and picks the device.
struct RowGatherBackend {
  void (*gather)(const Tensor& x, const Tensor& index, Tensor& out);
  void (*add)(const Tensor& from, const Tensor& index, Tensor& to);
};
namespace cpu {
extern const RowGatherBackend kRowGather;
}
namespace cuda {
extern const RowGatherBackend kRowGather;
}

}  // namespace dofla
