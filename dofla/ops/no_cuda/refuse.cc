// Linked instead of ops/cuda where dofla is built without CUDA. No tensor can then be on a GPU, so
// none of these is ever reached: they let the operations choose their device without #ifdef.
#include "dofla/ops/cuda/decode.h"
#include "dofla/ops/cuda/embedding.h"
#include "dofla/ops/cuda/heads.h"
#include "dofla/ops/cuda/linear_attention.h"
#include "dofla/ops/cuda/softmax_attention.h"

namespace dofla::cuda {
namespace {

[[noreturn]] void refuse() {
  fail(
      "this build of dofla has no GPU support; build it with `make build CUDA=1`, or use "
      "--device cpu");
}

}  // namespace

// clang-format off

Tensor embed_tokens(const Tensor&, const Tensor&, const Tensor&, const Tensor&) { refuse(); }
bool takes_few_rows(const Tensor&, const Dense&) { refuse(); }
void few_row_dense(const Tensor&, const Dense&, Tensor&) { refuse(); }
void place_heads(const Placement&, const Tensor&, RowHeads&, RowHeads&) { refuse(); }
Tensor linear_attention_step(const RowHeads&, const RowHeads&, const RowHeads&, const Features&,
                             LinearAttentionState&) { refuse(); }
std::unique_ptr<TokenProgram> token_program(const Device&) { refuse(); }

void embed(const Tensor&, const Tensor&, Tensor&) { refuse(); }
void embed_sequences(const Tensor&, const Tensor&, const Tensor&, int64_t, Tensor&) { refuse(); }
void embed_backward(const Tensor&, const Tensor&, Tensor&) { refuse(); }

void copy_heads(const Tensor&, Tensor&) { refuse(); }
void rotate(Tensor&, const std::vector<float>&, int64_t) { refuse(); }

Tensor linear_attention(const Tensor&, const Tensor&, const Tensor&, const Features&,
                        LinearAttentionState*, Tensor*) { refuse(); }
LinearAttentionGradients linear_attention_backward(const Tensor&, const Tensor&, const Tensor&,
                                                   const Features&, const Tensor&,
                                                   const AttentionTape&,
                                                   GradientRoom) { refuse(); }

void softmax_attention(const Tensor&, const Tensor&, const Tensor&, int64_t, Tensor&,
                       Tensor*) { refuse(); }
SoftmaxAttentionGradients softmax_attention_backward(const Tensor&, const Tensor&, const Tensor&,
                                                     const Tensor&, const AttentionTape&,
                                                     GradientRoom) { refuse(); }
// clang-format on

}  // namespace dofla::cuda
