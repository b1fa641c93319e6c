// Dense layers: the only place where a model's large weights are read.
#pragma once

#include "dofla/core/tensor.h"

namespace dofla {

// y = W x + bias. The weight keeps the type it has in the checkpoint (F32, F16 or BF16) and either
// of the two layouts that checkpoints use.
struct Linear {
  Tensor weight;  // [N, K], or [K, N] when input_major (GPT-2's Conv1D)
  bool input_major = false;
  Tensor bias;  // [N] in F32, or undefined

  int64_t inputs() const { return weight.size(input_major ? 0 : 1); }
  int64_t outputs() const { return weight.size(input_major ? 1 : 0); }
};

// One row reads each weight once, at the speed of memory; many rows run at the speed of sgemm,
// converting 16-bit weights a cache-sized panel at a time.
Tensor matmul(const Tensor& x,        // [R, K], F32
              const Linear& linear);  // -> [R, N], F32

// Next-token cross-entropy −log softmax(W x)[target] of every row, in nats. Logits exist only a
// panel of the vocabulary at a time.
Tensor cross_entropy(const Tensor& x,         // [R, K], F32
                     const Linear& head,      // N is the vocabulary
                     const Tensor& targets);  // [R], I64 -> [R], F32

}  // namespace dofla
