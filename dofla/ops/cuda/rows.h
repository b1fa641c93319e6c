#pragma once

#include "dofla/ops/rows.h"

namespace dofla::cuda {

void copy_rows(const Tensor& from, const std::vector<RowMove>& moves, Tensor& to);

}  // namespace dofla::cuda
