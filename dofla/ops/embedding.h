// Rows of a table by id.
#pragma once

#include "dofla/core/tensor.h"

namespace dofla {

// out[i] = table[ids[i]], in F32 on the CPU and in the type of the table on a GPU. Throws
// std::invalid_argument on an id outside the table.
Tensor embed(const Tensor& table,  // [V, C], F32, F16 or BF16
             const Tensor& ids);   // [N], I64 -> [N, C]

// What a decoder begins with: tokens[ids[b, t]] + positions[first + t]. Throws
// std::invalid_argument on an id or a position outside its table.
Tensor embed_sequences(const Tensor& tokens,     // [V, C], F32, F16 or BF16
                       const Tensor& positions,  // [context, C], or undefined
                       const Tensor& ids,        // [B, T], I64
                       int64_t first);           // -> [B·T, C]

// The positions of B equally long sequences whose first token stands at `first`: [B·T], I64.
Tensor position_ids(int64_t batch, int64_t tokens, int64_t first);

// grad_table[ids[i]] += grad[i], in the order of i.
void embed_backward(const Tensor& ids,    // [N], I64
                    const Tensor& grad,   // [N, C], F32
                    Tensor& grad_table);  // [V, C], F32

}  // namespace dofla
