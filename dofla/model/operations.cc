#include "dofla/model/operations.h"

#include "dofla/ops/exact_keys.h"
#include "dofla/ops/linear_attention.h"

namespace dofla {
namespace {

double causal_pairs(const AttentionShape& shape) {
  return shape.layers * shape.heads * shape.tokens * (shape.tokens + 1) / 2;
}

double rows(const AttentionShape& shape) {
  return shape.layers * shape.heads * shape.tokens;
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

TokenCost token_cost(const DecodedAttention& attention) {
  const auto heads = static_cast<double>(attention.heads),
             width = static_cast<double>(attention.head_size),
             keys = static_cast<double>(attention.keys),
             features = static_cast<double>(attention.features);
  TokenCost cost = {.bytes = exact_key_bytes(attention.keys, attention.head_size) +
                             linear_state_bytes(attention.features, attention.head_size)};
  // Every query head of a group reads the keys and the sums that it shares; one key joins the sums.
  if (attention.keys > 0)
    cost.operations += 2 * 2 * width * keys * heads / static_cast<double>(attention.key_heads);
  if (attention.features > 0)
    cost.operations +=
        2 * 2 * width * features * (heads / static_cast<double>(attention.feature_heads) + 1);
  return cost;
}

TokenCost softmax_token_cost(const ModelConfig& config, int64_t tokens) {
  return {.bytes = 2 * 2 * config.kv_heads * config.head_size * tokens,
          .operations = static_cast<double>(2 * 2 * config.heads * config.head_size * tokens)};
}

Json to_json(const TokenCost& cost) {
  return {{"bytes", cost.bytes}, {"operations", cost.operations}};
}

double softmax_tokens(double operations, int64_t heads, int64_t head_size) {
  return operations / static_cast<double>(2 * 2 * heads * head_size);
}

double projection_weights(const ModelConfig& config) {
  return static_cast<double>(config.width * (config.heads + 2 * config.kv_heads) *
                             config.head_size);
}

double layer_weights(const ModelConfig& config) {
  const int64_t mlp = (config.gated_mlp ? 3 : 2) * config.width * config.mlp_width;
  return attention_weights(config) / static_cast<double>(config.layers) + static_cast<double>(mlp);
}

double attention_weights(const ModelConfig& config) {
  const auto output = static_cast<double>(config.heads * config.head_size * config.width);
  return static_cast<double>(config.layers) * (projection_weights(config) + output);
}

double head_weights(const ModelConfig& config) {
  return static_cast<double>(config.vocabulary * config.width);
}

double matrix_weights(const ModelConfig& config) {
  const int64_t positions = config.learned_positions ? config.context * config.width : 0;
  return static_cast<double>(config.layers) * layer_weights(config) +
         (config.tied_head ? 1 : 2) * head_weights(config) + static_cast<double>(positions);
}

double dense_operations(const ModelConfig& config, int64_t tokens) {
  return 2 * static_cast<double>(config.layers * tokens) * layer_weights(config);
}

double dense_operations_to_heads(const ModelConfig& config, int64_t tokens) {
  const double left_out = layer_weights(config) - projection_weights(config);
  return dense_operations(config, tokens) - 2 * static_cast<double>(tokens) * left_out;
}

double head_operations(const ModelConfig& config, int64_t tokens) {
  return 2 * static_cast<double>(tokens) * head_weights(config);
}

double decoded_bytes(const ModelConfig& config) {
  return 2 * (static_cast<double>(config.layers) * layer_weights(config) + head_weights(config));
}

}  // namespace dofla
