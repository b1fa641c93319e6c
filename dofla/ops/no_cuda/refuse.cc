// Linked instead of ops/cuda where dofla is built without CUDA. No tensor can then be on a GPU, so
// none of these is ever reached: they let the operations choose their device without #ifdef.
#include "dofla/ops/cuda/activation.h"
#include "dofla/ops/cuda/adam.h"
#include "dofla/ops/cuda/decode.h"
#include "dofla/ops/cuda/divergence.h"
#include "dofla/ops/cuda/embedding.h"
#include "dofla/ops/cuda/feature_loss.h"
#include "dofla/ops/cuda/feature_step.h"
#include "dofla/ops/cuda/heads.h"
#include "dofla/ops/cuda/linear_attention.h"
#include "dofla/ops/cuda/matmul.h"
#include "dofla/ops/cuda/norm.h"
#include "dofla/ops/cuda/ridge_traces.h"
#include "dofla/ops/cuda/rounding.h"
#include "dofla/ops/cuda/rows.h"
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
void activate(Activation, Tensor&) { refuse(); }
void activate_backward(Activation, const Tensor&, Tensor&) { refuse(); }
void multiply(Tensor&, const Tensor&) { refuse(); }
void add(Tensor&, const Tensor&) { refuse(); }

void adam_step(const Tensor&, const AdamOptions&, AdamMoments&, Tensor&) { refuse(); }
double sum_of_squares(std::span<const Tensor>) { refuse(); }
void scale(float, Tensor&) { refuse(); }

Tensor embed_tokens(const Tensor&, const Tensor&, const Tensor&, const Tensor&) { refuse(); }
bool takes_few_rows(const Tensor&, const Dense&) { refuse(); }
void few_row_dense(const Tensor&, const Dense&, Tensor&) { refuse(); }
void place_heads(const Placement&, const Tensor&, RowHeads&, RowHeads&) { refuse(); }
Tensor linear_attention_step(const RowHeads&, const RowHeads&, const RowHeads&, const Features&,
                             LinearAttentionState&) { refuse(); }
std::unique_ptr<TokenProgram> token_program(const Device&) { refuse(); }

Divergence divergence(const Tensor&, const Tensor&, const Tensor&) { refuse(); }
OutputError output_error(const Tensor&, const Tensor&) { refuse(); }

void embed(const Tensor&, const Tensor&, Tensor&) { refuse(); }
void embed_sequences(const Tensor&, const Tensor&, const Tensor&, int64_t, Tensor&) { refuse(); }
void embed_backward(const Tensor&, const Tensor&, Tensor&) { refuse(); }

FeatureLoss feature_loss(const Tensor&, const Tensor&, const Features&,
                         const FeatureLossOptions&) { refuse(); }
Tensor feature_step(const Tensor&, const Tensor&, const Tensor&, const FeatureStepOptions&,
                    FeatureMoments&, Features&) { refuse(); }

void copy_heads(const Tensor&, Tensor&) { refuse(); }
void rotate(Tensor&, const std::vector<float>&, int64_t) { refuse(); }

Tensor linear_attention(const Tensor&, const Tensor&, const Tensor&, const Features&,
                        LinearAttentionState*, Tensor*) { refuse(); }
LinearAttentionGradients linear_attention_backward(const Tensor&, const Tensor&, const Tensor&,
                                                   const Features&, const Tensor&,
                                                   const AttentionTape&,
                                                   GradientRoom) { refuse(); }

void matmul(const Tensor&, const Linear&, Tensor&) { refuse(); }
void matmul_add(const Tensor&, const Linear&, const Tensor&, Tensor&) { refuse(); }
void matmul_gelu_tanh(const Tensor&, const Linear&, Tensor&, Tensor*) { refuse(); }
void matmul_gelu_tanh_backward(const Tensor&, const Linear&, const Tensor&, Tensor&) { refuse(); }
void add_weight_gradient(const Tensor&, const Tensor&, Linear&) { refuse(); }
void cross_entropy(const Tensor&, const Linear&, const Tensor&, Tensor&) { refuse(); }
void cross_entropy_backward(const Tensor&, const Linear&, const Tensor&, const Tensor&,
                            CrossEntropyGradients&, Linear*) { refuse(); }
void imitation_backward(const Tensor&, const Linear&, const Tensor&, const Linear&, const Tensor&,
                        CrossEntropyGradients&, Linear*) { refuse(); }

void layer_norm(const Tensor&, const Tensor&, const Tensor&, double, Tensor&) { refuse(); }
void rms_norm(const Tensor&, const Tensor&, double, Tensor&) { refuse(); }
void layer_norm_backward(const Tensor&, const Tensor&, double, const Tensor&, Tensor&, Tensor*,
                         Tensor*) { refuse(); }
void rms_norm_backward(const Tensor&, const Tensor&, double, const Tensor&, Tensor&,
                       Tensor*) { refuse(); }

RidgeTraces ridge_traces(const Tensor&, GramScale, std::span<const double>) { refuse(); }
void round_into(const Tensor&, Tensor&) { refuse(); }
void copy_rows(const Tensor&, const std::vector<RowMove>&, Tensor&) { refuse(); }

void softmax_attention(const Tensor&, const Tensor&, const Tensor&, int64_t, Tensor&,
                       Tensor*) { refuse(); }
SoftmaxAttentionGradients softmax_attention_backward(const Tensor&, const Tensor&, const Tensor&,
                                                     const Tensor&, const AttentionTape&,
                                                     GradientRoom) { refuse(); }
// clang-format on

}  // namespace dofla::cuda
