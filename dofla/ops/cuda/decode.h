// One token of every sequence on a GPU; arguments are checked by ops/decode.cc.
#pragma once

#include "dofla/ops/decode.h"

namespace dofla::cuda {

Tensor embed_tokens(const Tensor& tokens, const Tensor& positions, const Tensor& ids,
                    const Tensor& where);

// Whether there is a kernel that does all of the layer in one launch: for few rows, in BF16, with
// a weight [N, K] and inputs in whole packs of eight.
bool takes_few_rows(const Tensor& x, const Dense& layer);
void few_row_dense(const Tensor& x, const Dense& layer, Tensor& y);

void place_heads(const Placement& placement, const Tensor& where, RowHeads& q, RowHeads& k);
Tensor linear_attention_step(const RowHeads& q, const RowHeads& k, const RowHeads& v,
                             const Features& features, LinearAttentionState& state);

std::unique_ptr<TokenProgram> token_program(const Device& gpu);

}  // namespace dofla::cuda
