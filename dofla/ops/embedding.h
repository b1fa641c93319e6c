// Rows of a table by id.
#pragma once

#include "dofla/core/tensor.h"

namespace dofla {

// out[i] = table[ids[i]] in F32. Throws std::invalid_argument on an id outside the table.
Tensor embed(const Tensor& table,  // [V, C], F32, F16 or BF16
             const Tensor& ids);   // [N], I64 -> [N, C]

// grad_table[ids[i]] += grad[i], in the order of i.
void embed_backward(const Tensor& ids,    // [N], I64
                    const Tensor& grad,   // [N, C], F32
                    Tensor& grad_table);  // [V, C], F32

}  // namespace dofla
