// GPT-NeoX (Pythia): one fused projection in which every head keeps its q, k and v together.
#include "dofla/model/weights.h"

namespace dofla {

Weights load_gpt_neox(WeightReader& reader) {
  const ModelConfig& config = reader.config();
  const int64_t width = config.width, size = config.head_size;
  Weights weights;
  weights.token_embedding = reader.matrix("gpt_neox.embed_in.weight", {config.vocabulary, width});
  for (int64_t i = 0; i < config.layers; ++i) {
    const std::string at = fmt::format("gpt_neox.layers.{}.", i);
    LayerWeights layer;
    layer.attention_norm = reader.norm(at + "input_layernorm", width, true);
    layer.projections = {
        reader.linear(at + "attention.query_key_value", width, 3 * width, config.qkv_bias)};
    layer.q = {.offset = 0, .stride = 3 * size};
    layer.k = {.offset = size, .stride = 3 * size};
    layer.v = {.offset = 2 * size, .stride = 3 * size};
    layer.attention_output =
        reader.linear(at + "attention.dense", width, width, config.attention_output_bias);
    layer.mlp_norm = reader.norm(at + "post_attention_layernorm", width, true);
    layer.mlp_up =
        reader.linear(at + "mlp.dense_h_to_4h", width, config.mlp_width, config.mlp_bias);
    layer.mlp_down =
        reader.linear(at + "mlp.dense_4h_to_h", config.mlp_width, width, config.mlp_bias);
    weights.layers.push_back(std::move(layer));
  }
  weights.final_norm = reader.norm("gpt_neox.final_layer_norm", width, true);
  weights.head.weight = config.tied_head
                            ? weights.token_embedding
                            : reader.matrix("embed_out.weight", {config.vocabulary, width});
  return weights;
}

}  // namespace dofla
