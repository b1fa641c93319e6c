#include "bench/gpu/operations.h"

#include "dofla/ops/linear_attention.h"

namespace dofla::bench {
namespace {

double causal_pairs(const AttentionShape& shape) {
  return shape.layers * shape.heads * shape.tokens * (shape.tokens + 1) / 2;
}

double rows(const AttentionShape& shape) {
  return shape.layers * shape.heads * shape.tokens;
}

double count_of(const Linear& linear) {
  return linear.weight.defined() ? static_cast<double>(linear.weight.count()) : 0;
}

double projection_weights(const LayerWeights& layer) {
  double weights = 0;
  for (const Linear& projection : layer.projections) weights += count_of(projection);
  return weights;
}

// Those behind the attention.
double other_weights(const LayerWeights& layer) {
  return count_of(layer.attention_output) + count_of(layer.mlp_gate) + count_of(layer.mlp_up) +
         count_of(layer.mlp_down);
}

double layer_weights(const Transformer& model) {
  double weights = 0;
  for (const LayerWeights& layer : model.weights().layers)
    weights += projection_weights(layer) + other_weights(layer);
  return weights;
}

}  // namespace

AttentionShape attention_shape(const ModelConfig& config, int64_t tokens, int64_t features) {
  return {static_cast<double>(config.layers), static_cast<double>(config.heads),
          static_cast<double>(tokens), static_cast<double>(config.head_size),
          static_cast<double>(features)};
}

double softmax_attention_operations(const AttentionShape& shape) {
  return causal_pairs(shape) * 2 * 2 * shape.width;
}

double softmax_attention_gradient_operations(const AttentionShape& shape) {
  return causal_pairs(shape) * 5 * 2 * shape.width;
}

double linear_attention_operations(const AttentionShape& shape) {
  const double square = shape.width * shape.features;
  const double pairs_of_a_row = static_cast<double>(kLinearAttentionChunk + 1) / 2;
  const double features = 2 * 2 * square, state = 2 * 2 * square;
  return rows(shape) * (features + state + pairs_of_a_row * 2 * (shape.features + shape.width));
}

double linear_attention_gradient_operations(const AttentionShape& shape) {
  return 2 * linear_attention_operations(shape);
}

double feature_loss_operations(const AttentionShape& shape) {
  const double features = 2 * 2 * shape.width * shape.features;  // of a row of q and one of k
  return causal_pairs(shape) * 2 * (shape.width + 3 * shape.features) + rows(shape) * 2 * features;
}

double head_bytes(const AttentionShape& shape, double tensors) {
  return tensors * 2 * rows(shape) * shape.width;
}

double dense_operations(const Transformer& model, int64_t tokens) {
  return 2 * layer_weights(model) * static_cast<double>(tokens);
}

double dense_operations_to_heads(const Transformer& model, int64_t tokens) {
  const double left_out = other_weights(model.weights().layers.back());
  return 2 * (layer_weights(model) - left_out) * static_cast<double>(tokens);
}

double head_operations(const Transformer& model, int64_t tokens) {
  return 2 * count_of(model.weights().head) * static_cast<double>(tokens);
}

double weight_bytes(const Transformer& model) {
  return 2 * (layer_weights(model) + count_of(model.weights().head));
}

}  // namespace dofla::bench
