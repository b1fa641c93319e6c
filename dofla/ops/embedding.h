// Rows of a table by id.
#pragma once

#include "dofla/core/tensor.h"

namespace dofla {

// out[i] = table[ids[i]], in F32 on the CPU and in the type of the table on a GPU. Throws
// std::invalid_argument on an id outside the table.
Tensor embed(const Tensor& table,  // [V, C], F32, F16 or BF16, on the CPU also scaled
             const Tensor& ids);   // [N], I64 -> [N, C]

// What a decoder begins with: tokens[ids[b, t]] + positions[first[b] + t]. Ids and positions on the
// CPU are checked: std::invalid_argument on one outside its table. On a GPU they are not.
Tensor embed_sequences(const Tensor& tokens,     // [V, C], F32, F16 or BF16
                       const Tensor& positions,  // [context, C], or undefined
                       const Tensor& ids,        // [B, T], I64, on the CPU or with the tables
                       const Tensor& first);     // [B], I64, like ids; undefined: 0 -> [B·T, C]

// The positions of the tokens of B sequences, each of which begins at first[b]: [B·T], I64.
Tensor position_ids(int64_t batch, int64_t tokens,
                    const Tensor& first);  // [B], I64, on the CPU; undefined: 0

// grad_table[ids[i]] += grad[i], in the order of i.
void embed_backward(const Tensor& ids,    // [N], I64
                    const Tensor& grad,   // [N, C], F32
                    Tensor& grad_table);  // [V, C], F32

// What a device has to implement; ops/embedding.cc checks the arguments and picks the device.
struct EmbeddingBackend {
  void (*embed)(const Tensor& table, const Tensor& ids, Tensor& out);
  // In one launch, or null.
  void (*embed_sequences)(const Tensor& tokens, const Tensor& positions, const Tensor& ids,
                          const Tensor& first, Tensor& out);
  void (*embed_backward)(const Tensor& ids, const Tensor& grad, Tensor& grad_table);
};
namespace cpu {
extern const EmbeddingBackend kEmbedding;
}  // namespace cpu
namespace cuda {
extern const EmbeddingBackend kEmbedding;
}  // namespace cuda

}  // namespace dofla
