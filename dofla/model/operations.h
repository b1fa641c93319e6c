// How much work a model is, by its shape alone: what a figure is held against a machine's ceilings
// by, and what a run will take.
//
// Operations are those of matrix products alone, two for a multiplication with its addition, and as
// few as the mathematics asks for: causal pairs only, nothing computed twice. All are for one
// sample of T tokens through all L layers.
#pragma once

#include "dofla/checkpoint/hf_config.h"
#include "dofla/core/json.h"

namespace dofla {

struct AttentionShape {
  double layers = 0;    // L
  double heads = 0;     // H
  double tokens = 0;    // T
  double width = 0;     // D
  double features = 0;  // M, in every head
};

AttentionShape attention_shape(const ModelConfig& config, int64_t tokens, int64_t features);

// q·k and p·v for every causal pair. The gradients take five products more: q·k again, which is
// never stored, then those of p and v, and those of q and k.
double softmax_attention_operations(const AttentionShape& shape);
double softmax_attention_gradient_operations(const AttentionShape& shape);

// In chunks of 64 tokens: the features of q and k, both products within a chunk, and the two with
// the state. Every product has two gradients.
double linear_attention_operations(const AttentionShape& shape);
double linear_attention_gradient_operations(const AttentionShape& shape);

// q·k and φ(q)·φ(k) for every causal pair with the gradients of both factors of the latter, the
// features, and the gradient of z.
double feature_loss_operations(const AttentionShape& shape);

// Bytes of so many tensors of q's shape in BF16: what a fused kernel reads and writes.
double head_bytes(const AttentionShape& shape, double tensors);

// Attention in one layer, while tokens are decoded.
struct TokenCost {
  int64_t bytes = 0;      // that it holds of a sequence, all of which every token reads
  double operations = 0;  // of a token

  bool operator==(const TokenCost&) const = default;
};
// What it attends to.
struct DecodedAttention {
  int64_t heads = 0;
  int64_t head_size = 0;
  int64_t key_heads = 0;      // any number where there are no keys
  int64_t keys = 0;           // exact, of all key heads together
  int64_t feature_heads = 0;  // any number where there are no features
  int64_t features = 0;       // of all these heads together
};
// q·k and p·v for every exact key; the features of the query and of the key that joins the sums,
// its product with the value, and that of the query's features with the sums.
TokenCost token_cost(const DecodedAttention& attention);
// Softmax attention to so many tokens, in a cache of 16 bits.
TokenCost softmax_token_cost(const ModelConfig& config, int64_t tokens);
Json to_json(const TokenCost& cost);  // {"bytes","operations"}
// The tokens at which softmax attention in one layer has so many operations.
double softmax_tokens(double operations, int64_t heads, int64_t head_size);

// Weights of the matrices: of a layer's projections to queries, keys and values, of all of a layer,
// of the projections around attention in all layers, of the output head (which may be the
// embedding); and all parameters but biases and norms.
double projection_weights(const ModelConfig& config);
double layer_weights(const ModelConfig& config);
double attention_weights(const ModelConfig& config);
double head_weights(const ModelConfig& config);
double matrix_weights(const ModelConfig& config);

// Products with the weights of the layers, T rows.
double dense_operations(const ModelConfig& config, int64_t tokens);
// The same without what follows the last layer's queries and keys, which a layerwise step leaves
// out.
double dense_operations_to_heads(const ModelConfig& config, int64_t tokens);
// T rows times the output head.
double head_operations(const ModelConfig& config, int64_t tokens);
// Every matrix that decoding a token reads, in BF16.
double decoded_bytes(const ModelConfig& config);

}  // namespace dofla
