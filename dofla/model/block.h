// One decoder block, attention and MLP with their norms and residuals, and its backward. R = B·T
// rows throughout.
#pragma once

#include <vector>

#include "dofla/model/executor.h"
#include "dofla/model/weights.h"

namespace dofla {

// What a block is made of; the model keeps all of it alive.
struct Block {
  int64_t layer;
  const ModelConfig& config;
  const LayerWeights& weights;
  const Attention& attention;
  const Tensor& frequencies;  // of the rotary embedding; may be undefined
};

// What the backward needs of the forward. Norms and activations are cheap beside the products
// around them: the backward computes them again.
struct BlockTape {
  Tensor x;     // [R, C], the block's input
  Tensor q, k;  // before the q/k norms; undefined without them
  Heads heads;  // as they enter the attention
  AttentionTape attention;
  Tensor middle;  // [R, C], what the MLP's norm receives
  Tensor inner;   // [R, F], what the activation receives
  Tensor gated;   // [R, F], what multiplies the activation; undefined unless gated
};

// The first half of a block: queries, keys and values as they enter the attention.
Heads project_heads(Executor& run, const Block& block,
                    const Tensor& x,  // [R, C], the block's input
                    BlockTape* tape = nullptr);

// The second half. Returns the block's output, [R, C].
Tensor finish_block(Executor& run, const Block& block, const Tensor& x, const Heads& heads,
                    BlockTape* tape = nullptr);

// The gradient of the block's input from that of its output, for a forward without state. Those of
// weights and features are added where they are wanted, else the pointers are null; of weights that
// are not trained the tensors are undefined.
Tensor block_backward(const Block& block, const BlockTape& tape,
                      const Tensor& grad_y,  // [R, C]
                      LayerWeights* weights, FeatureGradients* features);

}  // namespace dofla
