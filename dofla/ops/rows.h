// Rows picked from one table and put into another.
#pragma once

#include <vector>

#include "dofla/core/tensor.h"

namespace dofla {

struct RowMove {
  int64_t from, to;
};

// to[move.to] = from[move.from] for every move. No row is written twice.
void copy_rows(const Tensor& from,  // [R, D], any float type
               const std::vector<RowMove>& moves,
               Tensor& to);  // [S, D], F32, on the same device

// What a device has to implement; ops/rows.cc checks the arguments and picks the device.
struct RowsBackend {
  decltype(&dofla::copy_rows) copy_rows;
};
namespace cpu {
extern const RowsBackend kRows;
}
namespace cuda {
extern const RowsBackend kRows;
}

}  // namespace dofla
