// Weights rounded to few bits: at 8, half the memory and the reading of 16-bit ones, and in any
// number a yardstick that everybody knows for how far a student is from its teacher.
#pragma once

#include "dofla/checkpoint/checkpoint.h"

namespace dofla {

// The same model with every row of every matrix a multiple of its largest magnitude/(2^(bits−1) −
// 1): up to 127 steps to either side with 8 bits, 7 with 4. A row is what makes one output, or one
// token's embedding. The matrices are those of the blocks, the token embedding and the head;
// position embeddings, norms and biases stay as they are. In memory; the matrices are scaled
// tensors. Throws std::invalid_argument unless 2 ≤ bits ≤ 8, Error on a weight that is not finite.
Checkpoint with_rounded_weights(const Checkpoint& model, int bits);

// One such matrix, as a scaled tensor.
Tensor round_rows(const Tensor& matrix,  // [N, K], or [K, N] when input_major; floats or scaled
                  bool input_major, int bits);

// Throws Error, saying what to take instead, if some of a model's weights are scaled tensors.
// `purpose` says what needs others: "distil".
void require_unrounded(const Checkpoint& model, std::string_view purpose);

}  // namespace dofla
